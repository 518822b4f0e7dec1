"""Evaluation: every client's accuracy on its own data, with no effect on what follows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedprompt.harness.core.rng import torch_rng
from fedprompt.harness.federation.clients import SplitName
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.harness.federation.schedule import (
    Evaluation,
    Group,
    adaptation_epochs,
    adaptation_stages,
    evaluation_groups,
    newcomer_evaluation,
)
from fedprompt.harness.federation.training import stack_states, train
from fedprompt.methods import State


@dataclass(frozen=True)
class Record:
    """One client in one evaluated round: the rows from which every metric is computed."""

    round: int
    client: int
    correct: int
    total: int
    participated: bool  # took part in a round up to this one
    unseen: bool = False  # kept out of training on purpose and adapted at the end
    samples: int = 0  # random draws averaged, where others than the method's own choice (0) are counted too


def carry_out(federation: Federation, state: FederationState, evaluation: Evaluation) -> list[Record]:
    """Count correct predictions in the current state, of one stack of clients after the other."""
    records = []
    for groups in evaluation.stacks:
        counted = (record for group in groups for record in _evaluate(federation, state, evaluation, group))
        records += sorted(counted, key=lambda record: (record.samples, record.client))
    return records


def evaluate(
    federation: Federation,
    state: FederationState,
    split: SplitName = "test",
    clients: Sequence[int] | None = None,
) -> list[Record]:
    """Evaluate ``clients`` (all members by default) now, whatever the schedule says."""
    adaptation = adaptation_epochs(federation.method, federation.protocol)
    selected = federation.members if clients is None else clients
    stacks = evaluation_groups(selected, state.personal, federation.stack, adaptation)
    return carry_out(federation, state, Evaluation(split, stacks, federation.protocol.swept(state.round)))


def evaluate_unseen(
    federation: Federation, state: FederationState, clients: Sequence[int], split: SplitName = "test"
) -> list[Record]:
    """Clients kept out of training: each adapts to the server's current state, then is counted once."""
    evaluation = newcomer_evaluation(federation.protocol, clients, federation.stack, split)
    return carry_out(federation, state, evaluation)


def _evaluate(federation: Federation, state: FederationState, evaluation: Evaluation, group: Group) -> Iterator[Record]:
    newcomers = evaluation.newcomers
    if group.epochs or newcomers:
        theta = adapt(federation, state, group.clients, group.epochs, newcomers)
    else:
        theta = _held(federation, state, group.clients)
    for record in count_correct(federation, state, theta, group.clients, evaluation.split, evaluation.sweep):
        yield replace(record, unseen=newcomers)


def adapt(
    federation: Federation, state: FederationState, clients: Sequence[int], epochs: int, newcomers: bool = False
) -> State:
    """Stacked copies of what ``clients`` hold after ``epochs`` of adaptation; the federation does not notice."""
    theta = federation.theta(state, clients, newcomers)[1] if newcomers else _held(federation, state, clients)
    method, key = federation.method, (federation.seed, state.round)
    stages = adaptation_stages(method, epochs, theta, newcomers)
    adapted, _ = train(method, theta, stages, federation.data, clients, federation.protocol, key, purpose="evaluation")
    return adapted


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
) -> list[Record]:
    """``sweep`` counts every prediction that the method can make of its draws, not only its own choice."""
    method, data, protocol = federation.method, federation.data, federation.protocol
    rngs = [torch_rng(federation.seed, "evaluation", "predict", state.round, client) for client in clients]
    correct: dict[int, Tensor] = {}
    absent = (method.task.train_counts[list(clients)] == 0)[:, None] if protocol.mask_local_classes else None
    for batch in data.ordered(clients, split, protocol.batch_size, rngs):
        predictions = method.predictions(theta, batch) if sweep else {0: method.predict(theta, batch)}
        for samples, scores in predictions.items():
            if absent is not None:
                scores = scores.masked_fill(absent.to(scores.device), float("-inf"))
            right = ((scores.argmax(-1) == batch.labels) & batch.mask).sum(1)
            correct[samples] = correct.get(samples, 0) + right
    return [
        Record(state.round, client, count, data.size(client, split), client in state.personal, samples=samples)
        for samples, counts in correct.items()
        for client, count in zip(clients, counts.tolist(), strict=True)
    ]
