"""A federation: rounds of selection, download, local training, upload and aggregation.

The loop is the same for every method and is never overridden. What must survive a round is in `FederationState`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedprompt.harness.core.rng import numpy_rng, torch_rng
from fedprompt.harness.federation.clients import ClientData
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.training import stack_states, train, unstack_state
from fedprompt.methods import Method, State

STEP_MEMORY = 2 * 1024**3  # bytes of activations a stacked step may take; fixed, so that a cell is the same everywhere


@dataclass
class FederationState:
    """All that a checkpoint holds. ``personal`` has an entry for each client that took part."""

    round: int
    server: State
    personal: dict[int, State] = field(default_factory=dict)
    local: dict[int, State] = field(default_factory=dict)  # what each client last trained; kept for post_local only


@dataclass(frozen=True)
class RoundLog:
    """What one round cost and how training went."""

    round: int
    cohort: tuple[int, ...]
    loss: float
    floats_down: int  # of the whole cohort
    floats_up: int
    bytes_down: int
    bytes_up: int
    diagnostics: dict[str, float] = field(default_factory=dict)  # what the method itself had to say, cohort means


class Federation:
    def __init__(
        self,
        method: Method,
        data: ClientData,
        protocol: Protocol,
        seed: int,
        members: Sequence[int] | None = None,
    ) -> None:
        """``members`` are the clients that train; the others never appear in a round."""
        self.method, self.data, self.protocol, self.seed = method, data, protocol, seed
        self.members = tuple(range(data.num_clients)) if members is None else tuple(members)
        self.stack = protocol.stack or auto_stack(method, protocol.batch_size)

    def start(self) -> FederationState:
        server = self.method.init_server(torch_rng(self.seed, "init", "server"))
        return FederationState(0, {name: tensor.to(self.data.device) for name, tensor in server.items()})

    def personal(self, state: FederationState, client: int) -> State:
        """A client's own tensors: what it kept from its last visit, or the common first draw."""
        if client in state.personal:
            return state.personal[client]
        fresh = self.method.init_personal(torch_rng(self.seed, "init", "personal"), client)
        return {name: tensor.to(self.data.device) for name, tensor in fresh.items()}

    def cohort(self, round_: int) -> tuple[int, ...]:
        """The clients of a round: the same for every method with this seed."""
        size = max(1, round(self.protocol.participation * len(self.members)))
        if size == len(self.members):
            return self.members
        drawn = numpy_rng(self.seed, "participation", round_).choice(self.members, size, replace=False)
        return tuple(sorted(int(client) for client in drawn))

    def theta(self, state: FederationState, clients: Sequence[int], newcomers: bool = False) -> tuple[State, State]:
        """(what the server sends, everything the clients hold), both stacked and copied."""
        send = self.method.newcomer if newcomers else self.method.download
        received = {k: v.clone() for k, v in send(state.server, clients).items()}
        personal = stack_states([self.personal(state, client) for client in clients])
        return received, {**received, **personal}

    def stacks(self, clients: Sequence[int]) -> Iterator[Sequence[int]]:
        """Clients cut into groups trained in one pass."""
        for start in range(0, len(clients), self.stack):
            yield clients[start : start + self.stack]

    def step(self, state: FederationState, cohort: Sequence[int] | None = None) -> RoundLog:
        """Run the next round and move ``state`` past it."""
        round_ = state.round + 1
        cohort = self.cohort(round_) if cohort is None else tuple(cohort)
        uploads: dict[int, State] = {}
        numbers: dict[int, dict[str, float]] = {}
        personal, local = dict(state.personal), dict(state.local)
        down = up = (0, 0)
        for clients in self.stacks(cohort):
            received, theta = self.theta(state, clients)
            held, kept = list(theta), sorted(theta.keys() - received.keys())  # not what a visit adds for the server
            stages = self.method.stages(self.protocol.epochs)
            theta, loss = train(self.method, theta, stages, self.data, clients, self.protocol, (self.seed, round_))
            theta |= self.method.end_visit(theta, self.data.ordered(clients, "train", self.protocol.batch_size))
            told = {k: v.tolist() for k, v in {**self.diagnostics(theta, clients, round_), "loss": loss}.items()}
            sent = self.method.upload(theta, received)
            down, up = _add(down, _count(received)), _add(up, _count(sent))
            for position, client in enumerate(clients):
                uploads[client] = unstack_state(sent, position)
                numbers[client] = {name: float(values[position]) for name, values in told.items()}
                personal[client] = unstack_state({k: theta[k] for k in kept}, position)
                if self.protocol.eval_point == "post_local":
                    local[client] = unstack_state({k: theta[k] for k in held}, position)
        order = sorted(cohort)  # sums are taken in one order, whatever order the clients trained in
        stacked = stack_states([uploads[client] for client in order])
        weights = self.weights(order)
        state.server = self.method.aggregate(state.server, stacked, weights, order)
        state.personal, state.local, state.round = personal, local, round_
        means = {name: sum(numbers[client][name] for client in order) / len(order) for name in numbers[order[0]]}
        return RoundLog(round_, tuple(order), means.pop("loss"), down[0], up[0], down[1], up[1], means)

    def diagnostics(self, theta: State, clients: Sequence[int], round_: int) -> State:
        """The method's own numbers on each client's first training images; consumes nothing of training."""
        rngs = [torch_rng(self.seed, "evaluation", "diagnostics", round_, client) for client in clients]
        first = [torch.arange(min(self.data.size(client), self.protocol.batch_size)) for client in clients]
        return self.method.diagnostics(theta, self.data.batch(clients, "train", first, rngs, "diagnose"))

    def weights(self, clients: Sequence[int]) -> Tensor:
        uniform = self.protocol.agg_weights == "uniform"
        sizes = torch.tensor([1 if uniform else self.data.size(c) for c in clients], dtype=torch.float64)
        return (sizes / sizes.sum()).to(self.data.device)


def auto_stack(method: Method, batch_size: int) -> int:
    """As many clients as keep a step's activations within STEP_MEMORY, by a rule of the shapes alone."""
    backbone = method.backbone
    if "images" not in method.needs:
        return max(1, STEP_MEMORY // (batch_size * backbone.width * 64))
    # About 16 floats a token and channel are kept for the backward pass of one block, prompts included.
    per_image = backbone.depth * (backbone.tokens + 12) * backbone.width * 16 * 4
    return max(1, STEP_MEMORY // (batch_size * per_image))


def _count(payload: State) -> tuple[int, int]:
    tensors = payload.values()
    return sum(t.numel() for t in tensors), sum(t.numel() * t.element_size() for t in tensors)


def _add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] + b[0], a[1] + b[1]
