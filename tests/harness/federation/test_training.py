import dataclasses
from collections.abc import Iterable, Mapping

import pytest
import torch
from torch import Tensor, nn

from fedprompt.core.rng import torch_rng
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.clients import ClientData
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.rounds import Federation
from fedprompt.harness.federation.training import stack_states, train, unstack_state
from fedprompt.harness.measuring.evaluation import adapt
from fedprompt.methods import Batch, Constants, Method, Stage, State, Statistics, Steps
from fedprompt.methods.fedvpt_d import FedVPTDeep
from fedprompt.methods.head_tune import HeadTune

STRONG = Protocol(epochs=2, batch_size=8, momentum=0.8, weight_decay=0.1)  # nothing small enough to go unnoticed
HEAD = {"head.weight": 0.5, "head.bias": 0.5}


def visit(
    federation: Federation,
    clients: list[int],
    stages: list[Stage],
    protocol: Protocol = STRONG,
    theta: State | None = None,
) -> tuple[State, Tensor]:
    start = federation.theta(federation.start(), clients)[1] if theta is None else theta
    return train(federation.method, start, stages, federation.data, clients, protocol, (0, 1))


def by_torch(
    data: ClientData, client: int, theta: State, epochs: int, protocol: Protocol = STRONG
) -> tuple[nn.Linear, list[float]]:
    """The visit of one client by torch's own linear layer, loss and optimiser."""
    layer = nn.Linear(*theta["head.weight"].shape[:0:-1])
    layer.load_state_dict({name.removeprefix("head."): value[0] for name, value in theta.items()})
    sgd = torch.optim.SGD(layer.parameters(), lr=0.5, momentum=protocol.momentum, weight_decay=protocol.weight_decay)
    order, losses = torch_rng(0, "batches", 1, client), []
    for _ in range(epochs):
        for batch in data.epoch([client], protocol.batch_size, [order], [order], "train"):
            assert batch.features is not None
            loss = nn.functional.cross_entropy(layer(batch.pack(batch.features)), batch.pack(batch.labels))
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            losses.append(loss.item())
    return layer, losses


@pytest.mark.parametrize("epochs", [1, 2, 3])
@pytest.mark.parametrize("client", [0, 3])
def test_a_visit_is_torch_sgd(client: int, epochs: int) -> None:
    federation = toy_federation(HeadTune)
    _, start = federation.theta(federation.start(), [client])
    theta, loss = visit(federation, [client], [Stage("train", HEAD, epochs)])
    layer, losses = by_torch(federation.data, client, start, epochs)
    torch.testing.assert_close(theta["head.weight"][0], layer.weight.data, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(theta["head.bias"][0], layer.bias.data, atol=1e-5, rtol=1e-5)
    assert loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.parametrize("method", [HeadTune, FedVPTDeep])
def test_stacked_clients_of_different_sizes_train_as_if_alone(method: type[Method]) -> None:
    federation = toy_federation(method)
    stages = list(hooks.stages(federation.method, 2))
    together, losses = visit(federation, [0, 1, 2, 3], stages)
    for client in range(4):
        alone, loss = visit(federation, [client], stages)
        for name, value in alone.items():
            torch.testing.assert_close(together[name][client], value[0], atol=1e-5, rtol=1e-5)
        assert losses[client].item() == pytest.approx(loss.item(), rel=1e-5)


def test_a_client_without_a_batch_is_not_touched() -> None:
    """Client 3 has one batch of five, client 2 three: neither decay nor momentum may move client 3 meanwhile."""
    federation = toy_federation(HeadTune)
    protocol = dataclasses.replace(STRONG, epochs=1)
    beside, _ = visit(federation, [3, 2], [Stage("train", HEAD, 1)], protocol)
    layer, _ = by_torch(federation.data, 3, federation.theta(federation.start(), [3])[1], 1, protocol)
    torch.testing.assert_close(beside["head.weight"][0], layer.weight.data, atol=1e-6, rtol=1e-6)


def test_momentum_is_fresh_in_every_stage() -> None:
    """Two stages of one epoch are two optimisers; one stage of two epochs is one."""
    federation, one = toy_federation(HeadTune), Stage("train", HEAD, 1)
    twice, _ = visit(federation, [3], [one, one])
    first, _ = visit(federation, [3], [one])
    again = train(
        federation.method, first, [one], federation.data, [3], dataclasses.replace(STRONG, momentum=0), (0, 1)
    )[0]  # five images are one batch: its only step needs no momentum
    longer, _ = visit(federation, [3], [Stage("train", HEAD, 2)])
    torch.testing.assert_close(twice["head.weight"], again["head.weight"], atol=1e-6, rtol=1e-6)
    assert (longer["head.weight"] - twice["head.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize("stage", [Stage("train", {}, 3), Stage("train", HEAD, 0)], ids=["no rates", "no epochs"])
def test_a_stage_without_rates_or_epochs_changes_nothing(stage: Stage) -> None:
    federation = toy_federation(HeadTune)
    _, start = federation.theta(federation.start(), [0, 1])
    theta, loss = visit(federation, [0, 1], [stage])
    assert all(torch.equal(theta[name], start[name]) for name in start)
    assert loss.tolist() == [0, 0]


def test_only_what_has_a_rate_trains() -> None:
    federation = toy_federation(FedVPTDeep)
    _, start = federation.theta(federation.start(), [0])
    theta, _ = visit(federation, [0], [Stage("adapt", HEAD, 1)])
    assert torch.equal(theta["prompts"], start["prompts"])
    assert not torch.equal(theta["head.weight"], start["head.weight"])


def test_a_tensor_the_loss_does_not_reach_only_decays() -> None:
    federation = toy_federation(HeadTune)
    start = {**federation.theta(federation.start(), [3])[1], "idle": torch.ones(1, 2)}
    theta, _ = visit(federation, [3], [Stage("train", {**HEAD, "idle": 0.5}, 1)], theta=start)
    assert theta["idle"].tolist() == [[pytest.approx(0.95)] * 2]


def test_the_tensors_given_are_not_written_to() -> None:
    federation = toy_federation(HeadTune)
    _, start = federation.theta(federation.start(), [0])
    before = start["head.weight"].clone()
    visit(federation, [0], [Stage("train", HEAD, 1)], theta=start)
    assert torch.equal(start["head.weight"], before)


def test_what_is_unstacked_is_a_copy() -> None:
    stacked = stack_states([{"a": torch.zeros(2)}, {"a": torch.ones(2)}])
    unstack_state(stacked, 1)["a"].fill_(9)
    assert stacked["a"].tolist() == [[0, 0], [1, 1]]


class Hooked(HeadTune, Constants, Steps, Statistics):
    """Uses every hook of a visit: a constant, a counter, a step of which the head's weight takes half."""

    name = "hooked"

    def begin_visit(self, theta: State, round_: int) -> State:
        return {"constant": torch.full((len(theta["head.bias"]),), 10.0 * round_)}

    def observe(self, theta: State, batch: Batch) -> State:
        assert torch.equal(batch.start["constant"], torch.full((len(batch.clients),), 10.0))
        return {"seen": theta["seen"] + batch.mask.sum(1)}

    def project_step(self, name: str, step: Tensor, start: Mapping[str, Tensor]) -> Tensor:
        return step * start["constant"].view(-1, 1, 1) / 20 if name == "head.weight" else step

    def end_visit(self, theta: State, batches: Iterable[Batch]) -> State:
        return {"total": sum((batch.mask.sum(1) for batch in batches), torch.zeros(len(theta["seen"])))}


def test_hooks_of_a_visit() -> None:
    plain, hooked = toy_federation(HeadTune), toy_federation(Hooked)
    start = {**plain.theta(plain.start(), [3, 1])[1], "seen": torch.zeros(2)}
    one = [Stage("train", HEAD, 1)]
    whole, _ = visit(plain, [3, 1], one, theta=start)  # five and eight images: one step for both
    half, _ = visit(hooked, [3, 1], one, theta=start)
    torch.testing.assert_close(
        half["head.weight"] - start["head.weight"], (whole["head.weight"] - start["head.weight"]) / 2
    )
    torch.testing.assert_close(half["head.bias"], whole["head.bias"])
    assert half["seen"].tolist() == [5, 8]
    assert "constant" not in half


def test_the_start_of_a_visit_stays_as_it_was() -> None:
    seen: list[Tensor] = []

    class Watching(HeadTune, Steps):
        def observe(self, theta: State, batch: Batch) -> State:  # noqa: ARG002
            seen.append(batch.start["head.weight"])
            return {}

    federation = toy_federation(Watching)
    _, start = federation.theta(federation.start(), [2])
    visit(federation, [2], [Stage("train", HEAD, 2)], theta=start)
    assert len(seen) == 6
    assert all(torch.equal(value, start["head.weight"]) for value in seen)


@pytest.mark.parametrize(
    ("own", "protocol", "counts"), [(1e-3, 0.0, 1e-3), (None, 1e-3, 1e-3), (1e-3, 1e-2, 1e-3), (1e-2, 1e-3, 1e-3)]
)
def test_the_smaller_limit_of_the_gradient_counts(own: float | None, protocol: float, counts: float) -> None:
    class Limited(HeadTune, Steps):
        def clip_norm(self) -> float | None:
            return own

    federation = toy_federation(Limited)
    _, start = federation.theta(federation.start(), [3, 1])
    rules = dataclasses.replace(STRONG, weight_decay=0.0, clip=protocol)
    theta, _ = visit(federation, [3, 1], [Stage("train", HEAD, 1)], rules, start)  # one step for both
    moved = torch.cat([(theta[name] - start[name]).flatten(1) for name in HEAD], dim=1).norm(dim=1)
    torch.testing.assert_close(moved, torch.full((2,), 0.5 * counts), atol=1e-7, rtol=1e-3)


def test_rates_of_rounds_follow_the_schedule_and_those_of_adaptations_do_not() -> None:
    """In the second of two rounds cosine halves the rates; the head that is fitted for an evaluation keeps its own."""
    trained, adapted = {}, {}
    for schedule in ("constant", "cosine"):
        federation = toy_federation(HeadTune, rounds=2, schedule=schedule, epochs=1, batch_size=32, weight_decay=0)
        state = federation.start()
        state.round = 1
        before = state.server["head.weight"]
        adapted[schedule] = adapt(federation, state, [0, 1], 3)["head.weight"]
        federation.step(state)
        trained[schedule] = state.server["head.weight"] - before
    assert torch.equal(adapted["constant"], adapted["cosine"])
    torch.testing.assert_close(trained["cosine"], trained["constant"] / 2, atol=1e-7, rtol=1e-4)


def test_fine_tuned_readings_differ_from_the_global_one_when_the_schedule_is_over() -> None:
    federation = toy_federation(HeadTune, rounds=50, schedule="cosine", finetune_epochs=2)
    state = federation.start()
    state.round = 50
    tuned = adapt(federation, state, [0], 2)["head.weight"][0]
    assert (tuned - state.server["head.weight"]).abs().max() > 1e-3
