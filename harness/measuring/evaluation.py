"""Evaluation: every client's accuracy on its own data, with no effect on what follows."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, zip_longest
from typing import NamedTuple

import torch
from torch import Tensor

from fedprompt.core.rng import torch_rng
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.clients import ClientData, SplitName
from fedprompt.harness.federation.policy import is_finetuned
from fedprompt.harness.federation.precision import autocast_as
from fedprompt.harness.federation.rounds import Federation, FederationState, require_finite
from fedprompt.harness.federation.schedule import (
    Clients,
    Evaluation,
    Group,
    evaluations_now,
    held_stages,
    unseen_evaluations,
)
from fedprompt.harness.federation.training import stack_states, train
from fedprompt.harness.measuring.counts import Counts, same_values
from fedprompt.methods import HeadedMethod, State

LOCAL = "local"
Known = defaultdict[int, dict[str, Tensor]]  # by batch


class Record(NamedTuple):
    """Test images of one domain of one client in one reading of a round: what every metric is computed from.

    A client's accuracy is sum(correct) / sum(total) over its domains. One without test data has a single record,
    with no domain and a total of 0.
    """

    round: int
    client: int
    domain: str  # its name
    correct: int
    total: int
    participated: bool  # took part in a round up to this one
    unseen: bool = False  # kept out of training on purpose and adapted at the end
    samples: int = 0  # random draws averaged, where others than the method's own choice (0) are counted too
    policy: str = "global"  # of the head in this reading
    test_set: str = LOCAL  # the client's own images, or what all clients share: base, novel, target


class Common:
    """What predictions for a stack of clients have in common while their readings differ in heads alone."""

    def __init__(self) -> None:
        self._readings: dict[tuple[Clients, SplitName], tuple[State, Known]] = {}

    def known(self, clients: Clients, split: SplitName, theta: State) -> Known:
        """What is known of each batch; nothing if more than heads has changed since the last reading."""
        rest = {name: tensor for name, tensor in theta.items() if not name.startswith("head.")}
        reading = self._readings.get((clients, split))
        if reading is None or not same_values(reading[0], rest):
            reading = self._readings[clients, split] = rest, defaultdict(dict)
        return reading[1]


def evaluate_due(
    federation: Federation, state: FederationState, evaluations: Sequence[Evaluation], counts: Counts | None = None
) -> list[Record]:
    """Count correct predictions in the current state, of one stack of clients after the other, in every reading of it.

    Clients whose earlier ``counts`` hold are not counted again; what is counted now is added to them.
    """
    records: list[list[Record]] = [[] for _ in evaluations]
    for stacks in zip_longest(*(evaluation.stacks for evaluation in evaluations), fillvalue=()):
        common = Common() if len(evaluations) > 1 else None
        for evaluation, groups, counted in zip(evaluations, stacks, records, strict=True):
            counted += _count_stack(federation, state, evaluation, groups, counts, common)
    return list(chain.from_iterable(records))


def _count_stack(
    federation: Federation,
    state: FederationState,
    evaluation: Evaluation,
    groups: Sequence[Group],
    counts: Counts | None,
    common: Common | None,
) -> list[Record]:
    counted: list[Record] = []
    in_order = len(groups) == 1 and not evaluation.sweep and not evaluation.shared
    for group in groups:
        known, changed = counts.split(state, evaluation, group) if counts else ([], group)
        counted += [Record(state.round, *record[1:]) for record in known]
        if changed.clients:
            in_order &= not known
            with autocast_as(federation.protocol.precision, federation.data.device):
                counted += _evaluate(federation, state, evaluation, changed, counts, common)
    return counted if in_order else sorted(counted, key=_order)


def _order(record: Record) -> tuple[bool, str, int, int]:
    return record.test_set != LOCAL, record.test_set, record.samples, record.client


def evaluate(
    federation: Federation,
    state: FederationState,
    split: SplitName = "test",
    clients: Sequence[int] | None = None,
) -> list[Record]:
    """Every reading of ``clients`` (all members by default) now, whatever the schedule says."""
    protocol, selected = federation.protocol, federation.members if clients is None else clients
    shared = federation.shared_splits if split == "test" else ()
    evaluations = evaluations_now(protocol, state.round, selected, state.personal, federation.stack, split, shared)
    return evaluate_due(federation, state, evaluations)


def evaluate_unseen(
    federation: Federation, state: FederationState, clients: Sequence[int], split: SplitName = "test"
) -> list[Record]:
    """Clients kept out of training: each adapts to the server's current state, then every reading is counted."""
    evaluations = unseen_evaluations(federation.protocol, clients, federation.stack, split)
    return evaluate_due(federation, state, evaluations)


def _evaluate(
    federation: Federation,
    state: FederationState,
    evaluation: Evaluation,
    group: Group,
    counts: Counts | None,
    common: Common | None,
) -> list[Record]:
    unseen = evaluation.unseen
    if group.epochs or unseen:
        theta = adapt(federation, state, group.clients, group.epochs, unseen, is_finetuned(evaluation.policy))
    else:
        theta = _held(federation, state, group.clients)
    records: list[Record] = []
    drawn = False
    for split in (evaluation.split, *evaluation.shared):
        sweep = evaluation.sweep and split == evaluation.split
        rngs, fresh = _generators(federation, state, group.clients), _generators(federation, state, group.clients)
        counted = count_correct(federation, state, theta, group.clients, split, sweep, rngs, common)
        records += [record._replace(unseen=unseen, policy=evaluation.policy) for record in counted]
        drawn |= any(not torch.equal(a.get_state(), b.get_state()) for a, b in zip(rngs, fresh, strict=True))
    if counts is not None and not drawn:
        counts.keep(state, evaluation, group, records)
    return records


def _generators(federation: Federation, state: FederationState, clients: Sequence[int]) -> list[torch.Generator]:
    """The random numbers that predictions of this round may take, for each client."""
    return [torch_rng(federation.seed, "evaluation", "predict", state.round, client) for client in clients]


def adapt(
    federation: Federation,
    state: FederationState,
    clients: Sequence[int],
    epochs: int,
    unseen: bool = False,
    shared: bool = True,
) -> State:
    """Stacked copies of what ``clients`` hold after ``epochs`` of adaptation; the federation does not notice.

    ``unseen`` clients first go through the stages that the method has for them, whatever the policy of the head.
    Without ``shared``, what the server sent stays as it is and only what is the client's own adapts.
    """
    method, data, protocol = federation.method, federation.data, federation.protocol
    visit = partial(train, data=data, clients=clients, protocol=protocol, key=(federation.seed, state.round))
    received, theta = federation.theta(state, clients, unseen)
    sent = hooks.sent_tensors(method, received, 0)
    theta = theta if unseen else _held(federation, state, clients)
    if unseen:
        stages = held_stages(hooks.unseen_stages(method, protocol.epochs), theta)
        theta, _ = visit(method, theta, stages, purpose="evaluation")
    adapting = theta.keys() if shared else theta.keys() - sent.keys()
    stages = held_stages([hooks.adaptation(method, epochs)], adapting)
    headed = hooks.fixed_inputs(method)
    inputs = _head_inputs(headed, federation, theta, clients) if headed and epochs and stages[0].rates else None
    adapted, loss = visit(method, theta, stages, purpose="evaluation", head_inputs=inputs)
    require_finite({**adapted, "loss": loss}, clients, state.round, "loss or tensors adapted for the evaluation")
    return adapted


@torch.no_grad()
def _head_inputs(method: HeadedMethod, federation: Federation, theta: State, clients: Sequence[int]) -> list[Tensor]:
    """Each client's training images as its head sees them, (n, d)."""
    per_batch = []
    for batch in federation.data.ordered(clients, "train", federation.protocol.batch_size):  # without random numbers
        inputs = method.head_inputs(theta, replace(batch, stage="adapt"))
        per_batch.append([rows[:size] for rows, size in zip(inputs, batch.sizes, strict=True)])
    return [torch.cat(parts) for parts in zip(*per_batch, strict=True)]


def _held(federation: Federation, state: FederationState, clients: Sequence[int]) -> State:
    """What clients hold now: the server's new state, or (post_local) what they themselves last trained."""
    _, theta = federation.theta(state, clients)
    parts = [state.local.get(client, {k: v[i] for k, v in theta.items()}) for i, client in enumerate(clients)]
    return stack_states(parts)


@torch.no_grad()
def count_correct(
    federation: Federation,
    state: FederationState,
    theta: State,
    clients: Sequence[int],
    split: SplitName,
    sweep: bool = False,
    rngs: Sequence[torch.Generator] | None = None,  # of the clients; by default those of the round
    common: Common | None = None,  # to other readings of these clients
) -> list[Record]:
    """``sweep`` counts every prediction that the method can make of its draws, not only its own choice."""
    data, protocol, is_shared = federation.data, federation.protocol, split in federation.shared_splits
    method = federation.novel if federation.novel and split == "novel" else federation.method
    rngs = _generators(federation, state, clients) if rngs is None else rngs
    hits: dict[int, list[Tensor]] = {}  # by number of draws: whether each image is right, (clients, batch size)
    constants = hooks.begin_evaluation(method, theta, data.ordered(clients, "train", protocol.batch_size))
    is_masked = protocol.mask_local_classes and not is_shared
    absent = (method.task.train_counts[list(clients)] == 0)[:, None] if is_masked else None
    known = common.known(tuple(clients), split, {**theta, **constants}) if common else None
    for number, plain in enumerate(data.ordered(clients, split, protocol.batch_size, rngs)):
        batch = replace(plain, start=constants, known=None if known is None else known[number])
        predictions = hooks.predictions(method, theta, batch) if sweep else {0: method.predict(theta, batch)}
        for samples, scores in predictions.items():
            scored = torch.where(batch.mask[..., None] & scores.isnan(), scores, 0)  # -inf excludes a class
            require_finite({"scores": scored}, clients, state.round, "predictions")
            if absent is not None:
                scores = scores.masked_fill(absent.to(scores.device), float("-inf"))
            hits.setdefault(samples, []).append((scores.argmax(-1) == batch.labels) & batch.mask)
    took_part, policy, test_set = state.personal, protocol.head, split if is_shared else LOCAL
    return [
        Record(state.round, client, domain, right, total, client in took_part, False, samples, policy, test_set)
        for samples, batches in hits.items()
        for client, row in zip(clients, torch.cat(batches, 1).cpu(), strict=True)
        for domain, right, total in _by_domain(data, client, split, row)
    ]


def _by_domain(data: ClientData, client: int, split: SplitName, hits: Tensor) -> list[tuple[str, int, int]]:
    """(domain, correct predictions, images) of the domains that the client has; ``hits`` in the stored order."""
    domains = data.domains(client, split)
    names = data.domain_names
    correct = torch.bincount(domains, weights=hits[: len(domains)].double(), minlength=len(names))
    total = torch.bincount(domains, minlength=len(names))
    counts = zip(names, correct.long().tolist(), total.tolist(), strict=True)
    return [count for count in counts if count[2]] or [("", 0, 0)]
