"""Evaluation: how every client's images are predicted, with no effect on what follows."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, zip_longest
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedprompt.core.errors import UserError
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
from fedprompt.harness.measuring.scores import BLOCK, IMAGE, pack, score_images
from fedprompt.methods import HeadedMethod, State

LOCAL = "local"
Known = defaultdict[int, dict[str, Tensor]]  # by batch


class Record(NamedTuple):
    """How many images of one domain of one client are predicted correctly, in one reading of a round.

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


class ClientScores(NamedTuple):
    """One client's images in one reading of a round, each with what `IMAGE` keeps of its prediction."""

    round: int
    client: int
    domains: tuple[tuple[str, int, int], ...]  # name, correct predictions and images of each that the client has
    participated: bool  # this and what follows as in `Record`
    unseen: bool
    samples: int
    policy: str
    test_set: str
    images: NDArray[Any]

    def records(self) -> list[Record]:
        about = (self.participated, self.unseen, self.samples, self.policy, self.test_set)
        counts = self.domains or [("", 0, 0)]
        return [Record(self.round, self.client, name, correct, total, *about) for name, correct, total in counts]


def records_of(scores: Iterable[ClientScores]) -> list[Record]:
    return [record for of_client in scores for record in of_client.records()]


def pack_scores(scores: Sequence[ClientScores]) -> bytes:
    """What the file of scores keeps of one round; nothing if nobody was evaluated."""
    if not scores:
        return b""
    blocks = [(*(getattr(part, name) for name in BLOCK[:-1]), len(part.images)) for part in scores]
    return pack(scores[0].round, blocks, np.concatenate([part.images for part in scores]))


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
) -> list[ClientScores]:
    """Score predictions in the current state, of one stack of clients after the other, in every reading of it.

    Clients whose earlier ``counts`` hold are not scored again; what is scored now is added to them.
    """
    scores: list[list[ClientScores]] = [[] for _ in evaluations]
    for stacks in zip_longest(*(evaluation.stacks for evaluation in evaluations), fillvalue=()):
        common = Common() if len(evaluations) > 1 else None
        for evaluation, groups, scored in zip(evaluations, stacks, scores, strict=True):
            scored += _score_stack(federation, state, evaluation, groups, counts, common)
    return list(chain.from_iterable(scores))


def _score_stack(
    federation: Federation,
    state: FederationState,
    evaluation: Evaluation,
    groups: Sequence[Group],
    counts: Counts | None,
    common: Common | None,
) -> list[ClientScores]:
    scored: list[ClientScores] = []
    in_order = len(groups) == 1 and not evaluation.sweep and not evaluation.shared
    for group in groups:
        known, changed = counts.split(state, evaluation, group) if counts else ([], group)
        scored += [scores._replace(round=state.round) for scores in known]
        if changed.clients:
            in_order &= not known
            with autocast_as(federation.protocol.precision, federation.data.device):
                scored += _evaluate(federation, state, evaluation, changed, counts, common)
    return scored if in_order else sorted(scored, key=_order)


def _order(scores: ClientScores) -> tuple[bool, str, int, int]:
    return scores.test_set != LOCAL, scores.test_set, scores.samples, scores.client


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
    return records_of(evaluate_due(federation, state, evaluations))


def evaluate_unseen(
    federation: Federation, state: FederationState, clients: Sequence[int], split: SplitName = "test"
) -> list[Record]:
    """Clients kept out of training: each adapts to the server's current state, then every reading is counted."""
    evaluations = unseen_evaluations(federation.protocol, clients, federation.stack, split)
    return records_of(evaluate_due(federation, state, evaluations))


def _evaluate(
    federation: Federation,
    state: FederationState,
    evaluation: Evaluation,
    group: Group,
    counts: Counts | None,
    common: Common | None,
) -> list[ClientScores]:
    unseen = evaluation.unseen
    if group.epochs or unseen:
        theta = adapt(federation, state, group.clients, group.epochs, unseen, is_finetuned(evaluation.policy))
    else:
        theta = _held(federation, state, group.clients)
    scored: list[ClientScores] = []
    drawn = False
    for split in (evaluation.split, *evaluation.shared):
        sweep = evaluation.sweep and split == evaluation.split
        rngs, fresh = _generators(federation, state, group.clients), _generators(federation, state, group.clients)
        of_split = score_clients(federation, state, theta, group.clients, split, sweep, rngs, common)
        scored += [scores._replace(unseen=unseen, policy=evaluation.policy) for scores in of_split]
        drawn |= any(not torch.equal(a.get_state(), b.get_state()) for a, b in zip(rngs, fresh, strict=True))
    if counts is not None and not drawn:
        counts.keep(state, evaluation, group, scored)
    return scored


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
def score_clients(
    federation: Federation,
    state: FederationState,
    theta: State,
    clients: Sequence[int],
    split: SplitName,
    sweep: bool = False,
    rngs: Sequence[torch.Generator] | None = None,  # of the clients; by default those of the round
    common: Common | None = None,  # to other readings of these clients
) -> list[ClientScores]:
    """``sweep`` scores every prediction that the method can make of its draws, not only its own choice."""
    data, protocol, is_shared = federation.data, federation.protocol, split in federation.shared_splits
    method = federation.novel if federation.novel and split == "novel" else federation.method
    rngs = _generators(federation, state, clients) if rngs is None else rngs
    columns: dict[int, list[dict[str, Tensor]]] = {}  # by number of draws, batch by batch
    constants = hooks.begin_evaluation(method, theta, data.ordered(clients, "train", protocol.batch_size))
    is_masked = protocol.mask_local_classes and not is_shared
    absent = (method.task.train_counts[list(clients)] == 0)[:, None] if is_masked else None
    known = common.known(tuple(clients), split, {**theta, **constants}) if common else None
    labels = pad_sequence([data.labels(client, split) for client in clients], batch_first=True).to(data.device)
    for number, plain in enumerate(data.ordered(clients, split, protocol.batch_size, rngs)):
        batch = replace(plain, start=constants, known=None if known is None else known[number])
        predictions = hooks.predictions(method, theta, batch) if sweep else {0: method.predict(theta, batch)}
        of_batch = labels[:, number * protocol.batch_size :][:, : batch.shape[1]]
        for samples, scores in predictions.items():
            if scores.shape != (*batch.shape, method.task.num_classes):
                raise UserError(
                    f"predictions of method {method.name!r} have shape {tuple(scores.shape)}, not one score per "
                    f"client, image and class {(*batch.shape, method.task.num_classes)} (docs/add-a-method.md)."
                )
            wrong = batch.mask[..., None] & (scores.isnan() | scores.isposinf())  # -inf excludes a class
            require_finite({"scores": torch.where(wrong, torch.nan, 0.0)}, clients, state.round, "predictions")
            if absent is not None:
                scores = scores.masked_fill(absent.to(scores.device), float("-inf"))
            columns.setdefault(samples, []).append(score_images(scores, of_batch))
    took_part, policy, test_set = state.personal, protocol.head, split if is_shared else LOCAL
    return [
        ClientScores(state.round, client, domains, client in took_part, False, samples, policy, test_set, images)
        for samples, batches in columns.items()
        for client, domains, images in _by_client(data, clients, split, batches)
    ]


def _by_client(
    data: ClientData, clients: Sequence[int], split: SplitName, batches: Sequence[dict[str, Tensor]]
) -> Iterator[tuple[int, tuple[tuple[str, int, int], ...], NDArray[Any]]]:
    """(client, counts of its domains, images) from columns of batches in the stored order, padding left out."""
    columns = {name: torch.cat([batch[name] for batch in batches], 1).cpu().numpy() for name in batches[0]}
    names = data.domain_names
    for place, client in enumerate(clients):
        images = np.empty(data.size(client, split), IMAGE)
        images["image"] = data.rows(client, split).numpy()
        for name, column in columns.items():
            images[name] = column[place, : len(images)]
        domains = data.domains(client, split).numpy()
        totals = np.bincount(domains, minlength=len(names)).tolist()
        correct = np.bincount(domains[images["label"] == images["predicted"]], minlength=len(names)).tolist()
        yield client, tuple(count for count in zip(names, correct, totals, strict=True) if count[2]), images
