from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from fedprompt.core.errors import UserError
from fedprompt.core.fields import build, describe
from fedprompt.harness.conformance.lab import double_precision
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.optimiser import OPTIMISERS, Optimiser, clipped, rate_factor
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.methods import State
from fedprompt.methods.head_tune import HeadTune

SHAPES = {"prompts": (3, 4), "head.bias": (5,)}
RATES = {"prompts": 0.05, "head.bias": 0.2}
TORCH: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda values, **rules: torch.optim.SGD(values, momentum=0.8, **rules),
    "adam": lambda values, **rules: torch.optim.Adam(values, betas=(0.8, 0.999), **rules),
    "adamw": lambda values, **rules: torch.optim.AdamW(values, betas=(0.8, 0.999), **rules),
}


def draws(clients: int, steps: int) -> tuple[State, list[State], Tensor]:
    """First values, gradients of every step, and who is active in it: all, until one client after the other stops."""
    rng = torch.Generator().manual_seed(0)

    def draw() -> State:
        return {name: torch.randn(clients, *shape, generator=rng) for name, shape in SHAPES.items()}

    active = torch.arange(steps)[:, None] % 5 < torch.arange(5, 5 - clients, -1)  # of five steps: 5, 4, ... batches
    return draw(), [draw() for _ in range(steps)], active


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 2e-6)], ids=str)
@pytest.mark.parametrize("decay_biases", [True, False])
@pytest.mark.parametrize("name", TORCH)
def test_stacked_clients_move_as_by_torch_each_alone(
    name: str, decay_biases: bool, dtype: torch.dtype, tolerance: float
) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        values, grads, active = draws(clients=3, steps=20)
        ours, optimiser = values, OPTIMISERS[name](0.8, 0.1, decay_biases)
        for grad, acting in zip(grads, active, strict=True):
            ours = optimiser.update(ours, grad, RATES, acting)
        for client in range(3):
            alone = {key: value[client].clone().requires_grad_() for key, value in values.items()}
            decays = {"prompts": 0.1, "head.bias": 0.1 if decay_biases else 0.0}
            groups = [{"params": [alone[key]], "lr": RATES[key], "weight_decay": decays[key]} for key in alone]
            theirs = TORCH[name](groups)
            for grad, acting in zip(grads, active, strict=True):
                if acting[client]:
                    for key, value in alone.items():
                        value.grad = grad[key][client].clone()
                    theirs.step()
            for key, value in alone.items():
                torch.testing.assert_close(ours[key][client], value.detach(), atol=tolerance, rtol=tolerance)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_client_that_is_not_active_is_not_touched(name: str) -> None:
    values, (first, second), _ = draws(clients=2, steps=2)
    optimiser = OPTIMISERS[name](0.9, 0.1)
    once = optimiser.update(values, first, RATES, torch.tensor([True, True]))
    remembered = optimiser.state
    twice = optimiser.update(once, second, RATES, torch.tensor([True, False]))
    for key in values:
        assert torch.equal(twice[key][1], once[key][1])
        assert not torch.equal(twice[key][0], once[key][0])
    for key, tensor in optimiser.state.items():
        assert torch.equal(tensor[1], remembered[key][1])
        assert not torch.equal(tensor[0], remembered[key][0])


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_continues_from_its_state(name: str) -> None:
    values, (first, second), _ = draws(clients=2, steps=2)
    everyone = torch.tensor([True, True])
    one = OPTIMISERS[name](0.9)
    once = one.update(values, first, RATES, everyone)
    another = OPTIMISERS[name](0.9, state=one.state)
    again, whole = (optimiser.update(once, second, RATES, everyone) for optimiser in (another, one))
    assert all(torch.equal(again[key], whole[key]) for key in values)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_step_may_be_changed_before_it_is_taken(name: str) -> None:
    """Weight decay included, whether it is coupled or not."""
    values, (grads,), _ = draws(clients=2, steps=1)
    everyone = torch.tensor([True, True])
    still = OPTIMISERS[name](0.9, 0.1).update(values, grads, RATES, everyone, lambda _, step: 0 * step)
    assert all(torch.equal(still[key], values[key]) for key in values)


def test_gradients_are_clipped_by_the_norm_of_each_client() -> None:
    weight, bias = torch.tensor([[[3.0], [0.0]], [[0.3], [0.0]]]), torch.tensor([[4.0], [0.4]])  # norms 5 and 0.5
    grads = {"weight": weight, "idle": None, "bias": bias}
    short = clipped(grads, 1.0)
    assert short["idle"] is None
    torch.testing.assert_close(short["weight"], torch.tensor([[[0.6], [0.0]], [[0.3], [0.0]]]))
    torch.testing.assert_close(short["bias"], torch.tensor([[0.8], [0.4]]))
    assert clipped(grads, None)["weight"] is weight


def factors(**rules: int | str) -> list[float]:
    protocol = Protocol(rounds=4, **rules)  # type: ignore[arg-type]
    return [protocol.rate_factor(round_) for round_ in range(1, 5)]


def test_schedules_by_hand() -> None:
    assert factors() == [1, 1, 1, 1]
    assert factors(schedule="cosine") == pytest.approx([1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2])
    assert factors(warmup=1) == [0.5, 1, 1, 1]
    assert factors(warmup=3, schedule="cosine") == [0.25, 0.5, 0.75, 1]
    assert factors(warmup=2, schedule="cosine") == pytest.approx([1 / 3, 2 / 3, 1, 0.5])


def test_rounds_after_the_last_do_not_begin_the_cosine_again() -> None:
    assert rate_factor("cosine", 0, 4, 9) == 0


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"warmup": 4, "rounds": 4}, "warmup = 4 leaves none of rounds = 4 at the full learning rate; use at most 3"),
        ({"optimiser": "adam", "momentum": 1}, "with momentum = 1, adam ignores every gradient"),
        ({"optimiser": "adamv"}, "adamw"),
        ({"schedule": "cosin"}, "cosine"),
        ({"clip": -1}, "clip = -1.0 is out of range"),
        ({"head_input": "scaled"}, "normalised, raw"),
    ],
)
def test_recipes_that_mean_nothing_are_refused(rules: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason) as error:
        build(Protocol, rules, "protocol")
    assert "\n" not in str(error.value)


@pytest.fixture
def sign_descent() -> Iterator[str]:
    """A fourth optimiser, as an unseen client would write it; nothing else changes."""

    class SignDescent(Optimiser, name="sign"):
        def fresh(self, value: Tensor) -> State:  # noqa: ARG002
            return {}

        def direction(self, grad: Tensor, memory: State) -> tuple[Tensor, State]:
            return grad.sign(), memory

    yield "sign"
    del OPTIMISERS["sign"]


def test_a_fourth_optimiser_is_one_class(sign_descent: str) -> None:
    protocol = build(Protocol, {"optimiser": sign_descent}, "protocol")
    (row,) = (row for row in describe(Protocol) if row["name"] == "optimiser")
    assert row["allowed"] == "sgd | adam | adamw | sign"
    rules = {"optimiser": protocol.optimiser, "weight_decay": 0.0, "epochs": 1, "participation": 1.0}
    federation = toy_federation(HeadTune, {"lr": 0.25}, **rules)
    state, before = federation.start(), federation.start().server["head.bias"]
    federation.step(state, [3])  # five images: one step
    moved = (state.server["head.bias"] - before).abs()
    torch.testing.assert_close(moved, torch.full((4,), 0.25), atol=1e-6, rtol=0)


def test_a_double_name_is_refused() -> None:
    with pytest.raises(ValueError, match="sgd"):
        type("Other", (OPTIMISERS["sgd"],), {}, name="sgd")


def test_adam_in_a_federation_is_stacked_exactly() -> None:
    with double_precision():
        heads = []
        for stack in (1, 4):
            federation = toy_federation(HeadTune, optimiser="adam", participation=1.0, stack=stack)
            state = federation.start()
            federation.step(state)
            heads.append(state.server["head.weight"])
    torch.testing.assert_close(*heads, atol=1e-10, rtol=0)
