"""Evaluation: every client's accuracy on its own data, with no effect on what follows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedprompt.harness.core.rng import torch_rng
from fedprompt.harness.federation.clients import Split
from fedprompt.harness.federation.rounds import Federation, FederationState
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


def evaluate(
    federation: Federation,
    state: FederationState,
    split: Split = "test",
    clients: Sequence[int] | None = None,
) -> list[Record]:
    """Count correct predictions of ``clients`` (all members by default) in the current state."""
    chosen = federation.members if clients is None else clients
    return [record for group in federation.stacks(chosen) for record in _evaluate(federation, state, split, group)]


def evaluate_unseen(
    federation: Federation, state: FederationState, clients: Sequence[int], split: Split = "test"
) -> list[Record]:
    """Clients kept out of training: each adapts to the final server state, then is counted once."""
    records = []
    for group in federation.stacks(clients):
        theta = adapt(federation, state, group, federation.protocol.epochs, newcomers=True)
        records += count_correct(federation, state, theta, group, split)
    return [replace(record, unseen=True) for record in records]


def adapt(
    federation: Federation, state: FederationState, clients: Sequence[int], epochs: int, newcomers: bool = False
) -> State:
    """Stacked copies of what ``clients`` hold after ``epochs`` of adaptation; the federation does not notice."""
    theta = federation.theta(state, clients, newcomers)[1] if newcomers else _held(federation, state, clients)
    method, key = federation.method, (federation.seed, state.round)
    planned = method.newcomer_stages(epochs) if newcomers else [method.adaptation(epochs)]
    stages = [replace(s, rates={k: lr for k, lr in s.rates.items() if k in theta}) for s in planned]
    adapted, _ = train(
        federation.method, theta, stages, federation.data, clients, federation.protocol, key, purpose="evaluation"
    )
    return adapted


def finetune_epochs(federation: Federation, participated: bool) -> int:
    """How long a client adapts a copy before it is evaluated; 0 for most."""
    protocol, method = federation.protocol, federation.method
    personal = method.init_personal(torch.Generator(), 0)
    if not participated and protocol.never_sampled == "finetune" and personal:
        return protocol.epochs
    return protocol.eval_ft_epochs or (protocol.epochs if method.finetune_before_evaluation() else 0)


def _evaluate(federation: Federation, state: FederationState, split: Split, clients: Sequence[int]) -> list[Record]:
    """One stack of clients; those that adapt first are a stack of their own."""
    by_epochs: dict[int, list[int]] = {}
    for client in clients:
        by_epochs.setdefault(finetune_epochs(federation, client in state.personal), []).append(client)
    records = []
    for epochs, group in by_epochs.items():
        theta = adapt(federation, state, group, epochs) if epochs else _held(federation, state, group)
        records += count_correct(federation, state, theta, group, split, federation.protocol.swept(state.round))
    return sorted(records, key=lambda record: (record.samples, record.client))


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
    split: Split,
    sweep: bool = False,
) -> list[Record]:
    """``sweep`` counts every prediction that the method can make of its draws, not only its own choice."""
    method, data, protocol = federation.method, federation.data, federation.protocol
    rngs = [torch_rng(federation.seed, "evaluation", "predict", state.round, client) for client in clients]
    correct: dict[int, Tensor] = {}
    absent = (method.task.train_counts[list(clients)] == 0)[:, None] if protocol.mask_local_classes else None
    for batch in data.ordered(clients, split, protocol.batch_size, rngs):
        made = method.predictions(theta, batch) if sweep else {0: method.predict(theta, batch)}
        for samples, scores in made.items():
            if absent is not None:
                scores = scores.masked_fill(absent.to(scores.device), float("-inf"))
            right = ((scores.argmax(-1) == batch.labels) & batch.mask).sum(1)
            correct[samples] = correct.get(samples, 0) + right
    return [
        Record(state.round, client, count, data.size(client, split), client in state.personal, samples=samples)
        for samples, counts in correct.items()
        for client, count in zip(clients, counts.tolist(), strict=True)
    ]
