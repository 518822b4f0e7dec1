"""A federation: rounds of selection, download, local training, upload and aggregation.

The loop is the same for every method and is never overridden. What must survive a round is in `FederationState`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedprompt.core.errors import UserError
from fedprompt.core.rng import torch_rng
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.clients import ClientData
from fedprompt.harness.federation.optimiser import learn
from fedprompt.harness.federation.payload import Payload, payload_of
from fedprompt.harness.federation.precision import autocast_as, require_precision
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.schedule import (
    Clients,
    Round,
    draw_cohort,
    draw_cohorts,
    in_stacks,
    schedule,
    select,
    shared_splits,
)
from fedprompt.harness.federation.stacking import auto_stack
from fedprompt.harness.federation.training import stack_states, train, unstack_state
from fedprompt.methods import LearningServer, Method, State

DIVERGED = "diverged in round "  # how the reason begins
DIAGNOSED = 4  # images of each client: a round's diagnostics are means over its whole cohort


class DivergedError(UserError):
    """Training left the range of numbers. The rate is too high for the method, the data or the backbone."""

    def __init__(self, round_: int, who: str, what: str = "loss or trained tensors") -> None:
        super().__init__(f"{DIVERGED}{round_}, {who}: {what} are not finite; lower the learning rates.")


@dataclass
class FederationState:
    """All that a checkpoint holds. ``personal`` has an entry for each client that took part."""

    round: int
    server: State
    personal: dict[int, State] = field(default_factory=dict)
    local: dict[int, State] = field(default_factory=dict)  # what each client last trained; for post_local only
    optimiser: State = field(default_factory=dict)  # what the server's optimiser remembers; for a `LearningServer` only


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
    diagnostics: dict[str, float] = field(default_factory=dict)  # the method's own numbers, means over the cohort


@dataclass(frozen=True)
class Visit:
    """What one client's visit leaves behind."""

    upload: State
    personal: State  # what the client keeps to itself
    local: State  # all that it was evaluated with, if that is what it trained itself (post_local)
    downloaded: Payload
    numbers: Mapping[str, float]  # the loss and the method's diagnostics


class Federation:
    def __init__(
        self,
        method: Method,
        data: ClientData,
        protocol: Protocol,
        seed: int,
        members: Sequence[int] | None = None,
        novel: Method | None = None,
    ) -> None:
        """``members`` are the clients that train; the others never appear in a round.

        ``novel`` is the method again, for the classes that nobody trains on, if there are any and it can score them.
        """
        require_precision(protocol.precision, data.device)
        self.method, self.data, self.protocol, self.seed = method, data, protocol, seed
        self.members: Clients = tuple(range(data.num_clients)) if members is None else tuple(members)
        self.stack = protocol.stack or auto_stack(method, protocol.batch_size)
        self.novel = novel
        self.shared_splits = shared_splits(data.shared, method)

    def start(self) -> FederationState:
        server = self.method.init_server(torch_rng(self.seed, "init", "server"))
        return FederationState(0, {name: tensor.to(self.data.device) for name, tensor in server.items()})

    def schedule(self, unseen: Sequence[int] = (), after: int = 0) -> Iterator[Round]:
        """The rounds that follow round ``after``."""
        cohorts = draw_cohorts(self.protocol, self.seed, self.members)
        visits = hooks.visit_stack(self.method, self.stack)
        rounds = schedule(self.protocol, cohorts, self.members, unseen, self.stack, self.shared_splits, visits)
        return (scheduled for scheduled in rounds if scheduled.number > after)

    def cohort(self, round_: int) -> Clients:
        return select(self.protocol, self.seed, self.members, round_)

    def visit_groups(self, cohort: Sequence[int], round_: int) -> tuple[Clients, ...]:
        """``cohort`` in groups that train in one pass; clients that train one by one do so in drawn order."""
        if hooks.one_by_one(self.method):
            drawn = draw_cohort(self.protocol, self.seed, self.members, round_)
            cohort = [*(c for c in drawn if c in cohort), *sorted(set(cohort).difference(drawn))]
        return in_stacks(cohort, hooks.visit_stack(self.method, self.stack))

    def personal(self, state: FederationState, client: int) -> State:
        """A client's own tensors: what it kept from its last visit, or the common first draw."""
        if client in state.personal:
            return state.personal[client]
        fresh = self.method.init_personal(torch_rng(self.seed, "init", "personal"), client)
        return {name: tensor.to(self.data.device) for name, tensor in fresh.items()}

    def theta(self, state: FederationState, clients: Sequence[int], unseen: bool = False) -> tuple[State, State]:
        """(what the server sends, everything the clients hold), both stacked and copied."""
        send = hooks.unseen_download if unseen else hooks.download
        received = {k: v.clone() for k, v in send(self.method, state.server, clients).items()}
        personal = stack_states([self.personal(state, client) for client in clients])
        return received, {**received, **personal}

    def step(self, state: FederationState, cohort: Sequence[int] | None = None) -> RoundLog:
        """Run the next round and move ``state`` past it; a round that fails leaves ``state`` as it was."""
        round_ = state.round + 1
        selected = self.cohort(round_) if cohort is None else tuple(cohort)
        visits: dict[int, Visit] = {}
        current = replace(state)  # the server's state with what clients of this round hand on
        for clients in self.visit_groups(selected, round_):
            received, theta = self.theta(current, clients)
            with autocast_as(self.protocol.precision, self.data.device):
                trained, numbers = self._train(theta, clients, round_)
            uploads = self.method.upload(trained, received)
            visits |= self._visits(clients, received, theta, trained, uploads, numbers)
            if in_turn := hooks.one_by_one(self.method):
                handed_on = in_turn.hand_on(unstack_state(received, 0), visits[clients[0]].upload)
                current.server = current.server | handed_on
        visits = dict(sorted(visits.items()))  # sums are taken in one order, whatever order the clients trained in
        state.server, state.optimiser = self._next_server(state, visits, round_)
        state.personal = state.personal | {client: visit.personal for client, visit in visits.items()}
        state.local = state.local | {client: visit.local for client, visit in visits.items() if visit.local}
        state.round = round_
        return _log(round_, visits)

    def _train(self, theta: State, clients: Sequence[int], round_: int) -> tuple[State, State]:
        """What ``clients`` hold after local training, statistics for the server included, and numbers to log."""
        stages = hooks.stages(self.method, self.protocol.epochs)
        factor = self.protocol.rate_factor(round_)
        key = self.seed, round_
        trained, loss = train(self.method, theta, stages, self.data, clients, self.protocol, key, factor=factor)
        require_finite({**trained, "loss": loss}, clients, round_)
        batches = self.data.ordered(clients, "train", self.protocol.batch_size)
        trained |= hooks.end_visit(self.method, trained, batches)
        return trained, {**self.diagnostics(trained, clients, round_), "loss": loss}

    def _visits(
        self, clients: Clients, received: State, theta: State, trained: State, uploads: State, numbers: State
    ) -> dict[int, Visit]:
        """Stacked tensors taken apart. Clients keep what they held at the start, not what they add for the server."""
        personal = {name: trained[name] for name in sorted(theta.keys() - received.keys())}
        local = {name: trained[name] for name in theta} if self.protocol.eval_point == "post_local" else {}
        values = {name: tensor.tolist() for name, tensor in numbers.items()}
        return {
            client: Visit(
                unstack_state(uploads, position),
                unstack_state(personal, position),
                unstack_state(local, position),
                payload_of(hooks.sent_tensors(self.method, received, position)),
                {name: float(per_client[position]) for name, per_client in values.items()},
            )
            for position, client in enumerate(clients)
        }

    def _next_server(self, state: FederationState, visits: Mapping[int, Visit], round_: int) -> tuple[State, State]:
        """The server's next state, and that of its optimiser."""
        clients = list(visits)
        uploads = stack_states([visit.upload for visit in visits.values()])
        server, optimiser = self.aggregate(state, uploads, self.weights(clients), clients)
        if not all(bool(tensor.isfinite().all()) for tensor in server.values()):
            raise DivergedError(round_, "server", "aggregated tensors")
        return server, optimiser

    def aggregate(
        self, state: FederationState, uploads: State, weights: Tensor, clients: Sequence[int]
    ) -> tuple[State, State]:
        """What the method's server makes of stacked uploads, the step of what it learns included."""
        method = self.method
        server = method.aggregate(state.server, uploads, weights, clients)
        if not isinstance(method, LearningServer):
            return server, state.optimiser
        gradients = method.server_gradients(state.server, uploads, weights, clients)
        factor = self.protocol.rate_factor(state.round + 1)
        learned, optimiser = learn(method, state.server, gradients, state.optimiser, clients, factor)
        return {**server, **learned}, optimiser

    def diagnostics(self, theta: State, clients: Sequence[int], round_: int) -> State:
        """The method's own numbers on each client's first training images; consumes nothing of training."""
        rngs = [torch_rng(self.seed, "evaluation", "diagnostics", round_, client) for client in clients]
        first = [torch.arange(min(self.data.size(client), DIAGNOSED)) for client in clients]
        return hooks.diagnostics(self.method, theta, self.data.batch(clients, "train", first, rngs, "diagnose"))

    def weights(self, clients: Sequence[int]) -> Tensor:
        """The clients' shares in the server's mean."""
        uniform = self.protocol.agg_weights == "uniform"
        sizes = torch.tensor([1 if uniform else self.data.size(c) for c in clients], dtype=torch.float64)
        return (sizes / sizes.sum()).to(self.data.device)


def require_finite(stacked: State, clients: Sequence[int], round_: int, what: str = "loss or trained tensors") -> None:
    """A client whose ``stacked`` tensors are no longer numbers ends the run: nothing after it would mean anything."""
    per_client = [tensor.isfinite().unsqueeze(-1).flatten(1).all(1) for tensor in stacked.values() if tensor.dim()]
    finite = torch.stack(per_client).all(0)
    if not bool(finite.all()):
        raise DivergedError(round_, f"client {clients[int(finite.logical_not().nonzero()[0, 0])]}", what)


def failure_state(reason: str) -> str:
    """What a cell that stopped for ``reason`` is called: `diverged` if its numbers are the reason, else `failed`."""
    return "diverged" if reason.startswith(DIVERGED) else "failed"


def _log(round_: int, visits: Mapping[int, Visit]) -> RoundLog:
    numbers = [visit.numbers for visit in visits.values()]
    means = {name: sum(row[name] for row in numbers) / len(numbers) for name in numbers[0]}
    down = [visit.downloaded for visit in visits.values()]
    up = [payload_of(visit.upload) for visit in visits.values()]
    return RoundLog(
        round_,
        tuple(visits),
        means.pop("loss"),
        floats_down=sum(payload.floats for payload in down),
        floats_up=sum(payload.floats for payload in up),
        bytes_down=sum(payload.bytes for payload in down),
        bytes_up=sum(payload.bytes for payload in up),
        diagnostics=means,
    )
