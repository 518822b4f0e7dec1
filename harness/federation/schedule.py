"""The schedule of a run: who trains and who is evaluated in which round, known before anything is computed.

`run_cell` carries it out, `fedprompt plan` counts it.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fedprompt.core.rng import numpy_rng
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.clients import SHARED_SPLITS, SplitName
from fedprompt.harness.federation.policy import is_finetuned, readings
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.methods import Method, Stage

Clients = tuple[int, ...]


class AdaptationEpochs(NamedTuple):
    """How long a client trains a copy of its head before it is evaluated; 0 for most."""

    participant: int  # has taken part in a round
    never_sampled: int  # has not, so far
    unseen: int  # is kept out of all rounds


class Group(NamedTuple):
    """Clients of one stack that train their heads equally long before they are evaluated."""

    clients: Clients
    epochs: int


@dataclass(frozen=True)
class Evaluation:
    """Clients to be evaluated on their own ``split``."""

    policy: str  # of the head in this reading
    split: SplitName
    clients: Sequence[int]
    participants: Collection[int]  # who has taken part so far
    adaptation: AdaptationEpochs
    stack: int  # clients that share a pass
    sweep: bool = False  # also count the predictions of other numbers of draws
    shared: tuple[SplitName, ...] = ()  # test sets that they are evaluated on as well, in the same state
    unseen: bool = False  # clients kept out of all rounds, which begin with what `UnseenClients.unseen_download` sends

    @property
    def stacks(self) -> Iterator[tuple[Group, ...]]:
        """The clients that share a pass, split by how long they train their heads first."""
        for stacked in in_stacks(self.clients, self.stack):
            by_epochs: dict[int, list[int]] = {}
            for client in stacked:
                by_epochs.setdefault(self._epochs(client), []).append(client)
            yield tuple(Group(tuple(group), epochs) for epochs, group in by_epochs.items())

    def _epochs(self, client: int) -> int:
        if self.unseen:
            return self.adaptation.unseen
        return self.adaptation.participant if client in self.participants else self.adaptation.never_sampled


@dataclass(frozen=True)
class Round:
    number: int  # from 1
    cohort: Clients
    stacks: tuple[Clients, ...]  # the cohort in groups that train in one pass
    evaluations: tuple[Evaluation, ...] = ()  # after the aggregation


def schedule(
    protocol: Protocol,
    cohorts: Iterable[Clients],
    members: Sequence[int],
    unseen: Sequence[int],
    stack: int,
    shared: tuple[SplitName, ...] = (),
    visit_stack: int | None = None,
) -> Iterator[Round]:
    """Every round of a run. ``unseen`` clients take no part in training and are evaluated once, at the end.

    ``stack`` clients share a pass; in training ``visit_stack``, if that is another number.

    The test sets that all clients have in common, ``shared``, are evaluated in reported rounds.
    """
    participants: set[int] = set()
    for number, cohort in enumerate(cohorts, start=1):
        participants.update(cohort)
        evaluations: list[Evaluation] = []
        if protocol.evaluated(number):
            also = shared if protocol.reported(number) and protocol.evaluated_split == "test" else ()
            evaluations += evaluations_now(protocol, number, members, frozenset(participants), stack, shared=also)
        if len(unseen) and number == protocol.rounds:
            evaluations += unseen_evaluations(protocol, unseen, stack)
        yield Round(number, cohort, in_stacks(cohort, visit_stack or stack), tuple(evaluations))


def draw_cohorts(protocol: Protocol, seed: int, members: Sequence[int]) -> Iterator[Clients]:
    """Who takes part in each round: the same for every method with this seed."""
    return (select(protocol, seed, members, number) for number in range(1, protocol.rounds + 1))


def select(protocol: Protocol, seed: int, members: Sequence[int], round_: int) -> Clients:
    """The cohort of a round, sorted: the same for every method with this seed."""
    if protocol.participation == 1:
        return tuple(members)
    return tuple(sorted(draw_cohort(protocol, seed, members, round_)))


def draw_cohort(protocol: Protocol, seed: int, members: Sequence[int], round_: int) -> Clients:
    """The cohort of a round in the order that its clients were drawn in."""
    size = max(1, round(protocol.participation * len(members)))
    return tuple(numpy_rng(seed, "participation", round_).choice(members, size, replace=False).tolist())


def shared_splits(names: Collection[str], method: Method) -> tuple[SplitName, ...]:
    """The shared test sets among ``names`` that ``method`` can be evaluated on."""
    able = (split for split in SHARED_SPLITS if split != "novel" or hooks.is_open_vocabulary(type(method)))
    return tuple(split for split in able if split in names)


def in_stacks(clients: Sequence[int], stack: int) -> tuple[Clients, ...]:
    """Clients cut into groups of at most ``stack`` that share a pass."""
    return tuple(tuple(clients[start : start + stack]) for start in range(0, len(clients), stack))


def evaluations_now(
    protocol: Protocol,
    round_: int,
    clients: Sequence[int],
    participants: Collection[int],
    stack: int,
    split: SplitName | None = None,
    shared: tuple[SplitName, ...] = (),
) -> list[Evaluation]:
    """Every reading of ``clients`` after ``round_``, of whom ``participants`` have taken part so far."""
    split, sweep = split or protocol.evaluated_split, protocol.swept(round_)
    return [
        Evaluation(
            policy, split, clients, participants, adaptation_epochs(protocol, policy), stack, sweep=sweep, shared=shared
        )
        for policy in readings(protocol)
    ]


def unseen_evaluations(
    protocol: Protocol, clients: Sequence[int], stack: int, split: SplitName | None = None
) -> list[Evaluation]:
    """Every reading of clients that were kept out of all rounds."""
    split = split or protocol.evaluated_split
    return [
        Evaluation(policy, split, clients, (), adaptation_epochs(protocol, policy), stack, unseen=True)
        for policy in readings(protocol)
    ]


def adaptation_epochs(protocol: Protocol, policy: str) -> AdaptationEpochs:
    """One rule for all methods: what is private is trained from its first draw, what is shared as the policy says."""
    if is_finetuned(policy):
        return AdaptationEpochs(*[protocol.finetune_epochs] * 3)
    if policy == "global":  # nobody has a head of its own
        return AdaptationEpochs(0, 0, 0)
    return AdaptationEpochs(0, protocol.epochs if protocol.never_sampled == "finetune" else 0, protocol.epochs)


def held_stages(stages: Sequence[Stage], held: Collection[str]) -> list[Stage]:
    """``stages`` without the tensors that a client does not hold."""
    return [replace(stage, rates={k: lr for k, lr in stage.rates.items() if k in held}) for stage in stages]
