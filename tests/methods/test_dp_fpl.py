import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from support.payloads import floats_sent

from fedprompt.harness.conformance.lab import ALL, after_rounds, first_rows, watch
from fedprompt.harness.conformance.toy import TRAIN_SIZES, toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.methods import State
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods.dp_fpl import DPFPL, epsilon, factors, full_gradient


def build(rounds: int = 0, **params: Any) -> tuple[DPFPL, State, Any]:
    federation, state = after_rounds(DPFPL, params, rounds)
    assert isinstance(federation.method, DPFPL)
    _, theta = federation.theta(state, ALL)
    return federation.method, theta, first_rows(federation, ALL, [5, 3, 5, 2], "train", theta)


def gradients(method: DPFPL, theta: State, batch: Any) -> State:
    leaves = {name: theta[name].clone().requires_grad_() for name in ("context", "own")}
    loss = method.loss({**theta, **leaves}, batch).sum()
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def matrices() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A context, its two factors, all in double precision."""
    rng = torch.Generator().manual_seed(0)
    own, start = torch.randn(2, 6, 10, generator=rng).double(), torch.randn(2, 10, 3, generator=rng).double()
    return own, *factors(own, start)


def test_factors_are_orthonormal_and_with_the_rest_exactly_the_context() -> None:
    own, left, right = matrices()
    identity = torch.eye(3).double().expand(2, 3, 3)
    torch.testing.assert_close(left.mT @ left, identity)
    torch.testing.assert_close(right @ right.mT, identity)
    rest = own - left @ right
    torch.testing.assert_close(left @ right + rest, own)


def test_the_private_gradient_is_a_projection_of_the_true_one() -> None:
    _, left, right = matrices()
    true = torch.randn(2, 6, 10, generator=torch.Generator().manual_seed(1)).double()
    onto_left, onto_right = left @ left.mT, right.mT @ right
    expected = onto_left @ true + true @ onto_right - onto_left @ true @ onto_right
    given = full_gradient(true @ right.mT, left.mT @ true, left, right)
    torch.testing.assert_close(given, expected)
    plus = full_gradient(true @ right.mT, left.mT @ true, left, right, sign=1)
    assert float((plus - expected).norm() / expected.norm()) > 0.1  # the sign of the public code is no projection


def test_without_noise_and_clipping_the_shared_gradient_is_the_plain_one() -> None:
    method, theta, batch = build(noise=0.0, clip=1e9)
    leaf = theta["context"].clone().requires_grad_()
    logits = method.cosine_logits(method.image_features(batch), method.encode(leaf + theta["own"]))
    (expected,) = torch.autograd.grad(cross_entropy(logits, batch).sum(), leaf)
    torch.testing.assert_close(gradients(method, theta, batch)["context"], expected, atol=1e-4, rtol=1e-3)


def test_the_private_context_gets_the_same_gradient_projected() -> None:
    method, theta, batch = build(noise=0.0, clip=1e9, rank=16, own_scale=1.0)  # of full rank, so that nothing is lost
    grads = gradients(method, theta, batch)
    torch.testing.assert_close(grads["own"], grads["context"], atol=1e-3, rtol=1e-3)
    low = gradients(*build(noise=0.0, clip=1e9, rank=2, own_scale=1.0))["own"]
    assert not torch.allclose(low, grads["own"], atol=1e-2)


def test_by_default_the_private_gradient_is_a_tenth_as_in_the_public_code() -> None:
    full, tenth = (gradients(*build(noise=0.0, **scale)) for scale in ({"own_scale": 1.0}, {}))
    torch.testing.assert_close(tenth["own"], full["own"] / 10)
    assert torch.equal(tenth["context"], full["context"])


def test_the_loss_is_the_plain_one() -> None:
    method, theta, batch = build()
    logits = method.cosine_logits(method.image_features(batch), method.encode(method.context(theta)))
    torch.testing.assert_close(method.loss(theta, batch), cross_entropy(logits, batch))


def test_one_image_moves_the_mean_by_no_more_than_twice_the_clip_over_the_batch() -> None:
    """Clipping the gradient of the batch instead would let one image move it by twice the clip, whatever its size."""
    method, theta, batch = build(noise=0.0, clip=0.01)
    other = batch.features.clone()
    other[:, 0] = -3 * other[:, 0]
    changed = replace(batch, features=other)
    before, later = (gradients(method, theta, each)["context"] for each in (batch, changed))
    for client, size in enumerate(batch.sizes):
        moved = float((before[client] - later[client]).norm())
        assert 0 < moved <= 2 * 0.01 / size + 1e-7
        assert float(before[client].norm()) <= 0.01 + 1e-7


def test_noise_is_as_wide_as_it_says() -> None:
    method, theta, batch = build(noise=2.0, clip=0.5)
    silent = gradients(build(noise=0.0, clip=0.5)[0], theta, batch)["context"]
    spread = []
    for seed in range(40):
        rngs = [torch.Generator().manual_seed(10 * seed + client) for client in ALL]
        spread.append(gradients(method, theta, replace(batch, rngs=rngs))["context"] - silent)
    for client, size in enumerate(batch.sizes):
        measured = torch.stack(spread)[:, client].std()  # 40 x 256 numbers
        assert float(measured) == pytest.approx(2.0 * 0.5 / size, rel=0.03)


def test_noise_is_drawn_from_each_clients_own_stream() -> None:
    method, theta, _ = build()
    first, second = (first_rows(toy_federation(DPFPL), ALL, [5, 3, 5, 2], "train", theta) for _ in range(2))
    again = gradients(method, theta, first)["own"], gradients(method, theta, second)["own"]
    assert torch.equal(*again)


def test_every_batch_moves_the_prompts_and_is_counted() -> None:
    """Reloading what was stored before the last update would keep one step of a round."""
    federation, state = after_rounds(DPFPL, {"noise": 0.0}, 0, epochs=3)
    found: list[torch.Tensor] = []  # the private context of client 2, which has most images, as each batch finds it
    watch(federation.method, "loss", lambda args, _: found.append(args[0]["own"][2].detach()))
    federation.step(state)
    batches = [math.ceil(size / 8) for size in TRAIN_SIZES]
    assert [int(state.personal[client]["steps"]) for client in ALL] == [3 * n for n in batches]
    assert len(found) == 3 * batches[2]
    assert all(not torch.equal(before, later) for before, later in pairwise([*found, state.personal[2]["own"]]))


def test_the_accountant_reproduces_the_closed_form_of_gaussian_releases() -> None:
    for multiplier, steps in ((5.0, 10), (20.0, 100), (2.0, 1)):
        closed = steps / (2 * multiplier**2) + math.sqrt(2 * steps * math.log(1e5)) / multiplier
        assert epsilon(multiplier, 1.0, steps, 1e-5) == pytest.approx(closed, rel=0.02)


def test_the_accountant_grows_with_steps_and_falls_with_noise_and_sampling() -> None:
    spent = [epsilon(1.0, 0.1, steps, 1e-5) for steps in (0, 1, 10, 100, 1000)]
    assert spent == sorted(spent)
    assert spent[0] == 0
    assert epsilon(2.0, 0.1, 100, 1e-5) < epsilon(1.0, 0.1, 100, 1e-5) < epsilon(1.0, 0.5, 100, 1e-5)
    assert epsilon(1.0, 1 - 1e-12, 10, 1e-5) == pytest.approx(epsilon(1.0, 1.0, 10, 1e-5), rel=1e-6)


def test_a_known_value_of_the_sampled_gaussian() -> None:
    """Noise multiplier 1.1, batches of 256 of 60,000, 60 epochs, delta 1e-5: about 3 in the literature on DP-SGD."""
    assert epsilon(1.1, 256 / 60_000, 60 * 60_000 // 256, 1e-5) == pytest.approx(3.0, abs=0.6)


def test_epsilon_is_logged_for_both_releases_of_every_step() -> None:
    federation = toy_federation(DPFPL, {"noise": 4.0}, participation=1.0, epochs=1)
    log = federation.step(federation.start())
    each = [
        epsilon(4 / math.sqrt(2), min(8, size) / size, math.ceil(size / 8), 1e-5) for size in TRAIN_SIZES
    ]  # fmt: skip
    assert log.diagnostics["epsilon"] == pytest.approx(sum(each) / 4, rel=1e-5)
    silent = toy_federation(DPFPL, {"noise": 0.0}, participation=1.0, epochs=1)
    assert "epsilon" not in silent.step(silent.start()).diagnostics


def test_only_the_shared_context_travels() -> None:
    federation = toy_federation(DPFPL)
    assert set(hooks.download(federation.method, federation.start().server, ALL)) == {"context"}
    assert floats_sent(federation.method) == (256, 256)
