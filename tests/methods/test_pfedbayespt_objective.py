"""The training objective of pFedBayesPT."""

import math

import pytest
import torch
from support.bayes_toy import FULL, MC, G, batch_of, build, loss_of, pass_of
from support.payloads import floats_sent
from torch import Tensor

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.methods._headed import linear

# -- the objective ---------------------------------------------------------------------------------------------------


def test_without_masks_the_mixture_changes_nothing() -> None:
    full, plain = loss_of(FULL, mask_keep_prob=1), loss_of(G, **MC)
    assert torch.equal(full, plain)


def test_the_mixture_is_a_matter_of_the_masks() -> None:
    def gain(logvar: float) -> Tensor:  # of the same first mask and the same noise: draws of A_1
        none, one = (loss_of(FULL, kl_reduction="sum", mixture=s, logvar_init=logvar) for s in (0, 1))
        return none - one

    assert gain(-10).tolist() == pytest.approx([math.log(2)] * 2, abs=0.02)  # components that do not overlap
    assert 0 < gain(2).abs().max() < 0.2  # components that nearly coincide


def test_without_mixture_the_loss_is_the_plain_bound() -> None:
    federation, method, theta = build(FULL, mixture=0)
    batch = batch_of(federation)
    (noise,), (mask,) = method.noise(batch, 1), method.masks(batch, 1)
    drawn = pass_of(method, theta, batch, mask, noise)
    psi, size = drawn.psis[0], 3 * 32
    q, prior = torch.distributions.Normal(psi.mean, psi.std), torch.distributions.Normal(0.0, 1.0)
    gap = (prior.log_prob(drawn.prompt) - q.log_prob(drawn.prompt)).sum((1, 2, 3))
    likelihood = linear(drawn.features, theta).log_softmax(-1).gather(-1, batch.labels[..., None])[..., 0]
    expected = -(likelihood + batch.pad(gap) / size).mean(1)
    torch.testing.assert_close(method.loss(theta, batch_of(federation)), expected)


def test_the_drawn_kl_averages_to_the_closed_form() -> None:
    federation, drawn, theta = build(G, kl="sampled", kl_reduction="sum", depth_instance=1)
    closed = build(G, kl="analytic", kl_reduction="sum", depth_instance=1)[1]
    differences = []
    for seed in range(60):  # both see the same noise, so the likelihood cancels
        one, other = (m.loss(theta, batch_of(federation, seeds=(seed, seed + 1000))) for m in (drawn, closed))
        differences.append((one - other).mean())
    gaps = torch.stack(differences)
    assert float(gaps.mean()) == pytest.approx(0, abs=4 * float(gaps.std()) / math.sqrt(60))
    assert gaps.std() > 0.1


def test_kl_reductions_and_weight() -> None:
    ce = loss_of(G, kl_weight=0)
    full, mean, half = (loss_of(G, **p) - ce for p in ({"kl_reduction": "sum"}, {}, {"kl_weight": 0.5}))
    torch.testing.assert_close(full, 96 * mean, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(half, 0.5 * mean, rtol=1e-4, atol=1e-4)


def test_paper_literal_is_the_sum_with_weight_one() -> None:
    literal = loss_of(FULL, paper_literal=True, kl_weight=0.001)
    assert torch.equal(literal, loss_of(FULL, kl_reduction="sum", logvar_init=0))


def test_more_importance_samples_do_not_loosen_the_bound() -> None:
    losses = []
    for j in (1, 8):
        federation, method, theta = build(FULL, importance=j, kl_reduction="sum", depth_instance=1, logvar_init=-1)
        bounds = [method.loss(theta, batch_of(federation, seeds=(s, s + 99))).mean() for s in range(4)]
        losses.append(torch.stack(bounds).mean())
    assert losses[1] < losses[0]


def test_importance_samples_share_the_further_psi_or_draw_their_own() -> None:
    shared, separate = (
        loss_of(FULL, importance=2, mix_shared=flag, logvar_init=2, kl_reduction="sum") for flag in (True, False)
    )
    assert not torch.equal(shared, separate)
    one = (loss_of(FULL, importance=1, mix_shared=flag) for flag in (True, False))
    assert torch.equal(*one)


def test_priors() -> None:
    same = loss_of(G)
    assert torch.equal(loss_of(G, prior="learned_global"), same)  # it begins as N(0, prior_std^2)
    assert not torch.equal(loss_of(G, prior_std=0.5), same)
    torch.testing.assert_close(loss_of(G, prior="unmasked_encoder"), loss_of(G, kl_weight=0))  # its own posterior
    masked, free = loss_of(FULL, prior="unmasked_encoder", kl="analytic"), loss_of(FULL, kl_weight=0, kl="analytic")
    assert (masked - free).min() > -math.log(2) / 96


def test_the_learned_prior_is_shared_and_trains() -> None:
    federation = toy_federation(FULL, {"prior": "learned_global"})
    state = federation.start()
    before = {name: state.server[name].clone() for name in ("prior.mean", "prior.logvar")}
    log = federation.step(state)
    assert all(not torch.equal(state.server[name], value) for name, value in before.items())
    assert log.floats_up == 2 * floats_sent(federation.method)[1]


def test_gradient_reaches_the_variance_through_the_noise_only() -> None:
    federation, method, theta = build(G, kl_weight=0)
    leaf, _ = theta["encoder.logvar.0.weight"].requires_grad_(), theta["prompts"].requires_grad_()
    batch = batch_of(federation)
    for noise, reached in ((method.noise(batch, 1)[0], True), (None, False)):
        features = pass_of(method, theta, batch, None, noise).features
        (grad,) = torch.autograd.grad(features.square().sum(), [leaf], allow_unused=True)
        assert (grad is not None and bool(grad.any())) is reached


def test_clients_alike_in_data_state_and_stream_update_alike() -> None:
    federation, method, theta = build(FULL)
    twins = {name: tensor[:1].expand(2, *tensor.shape[1:]).clone().requires_grad_() for name, tensor in theta.items()}
    loss = method.loss(twins, batch_of(federation, clients=(0, 0), seeds=(5, 5)))
    grads = torch.autograd.grad(loss.sum(), list(twins.values()))
    assert loss[0] == loss[1]
    assert all(torch.equal(grad[0], grad[1]) for grad in grads)
    other = method.loss(twins, batch_of(federation, clients=(0, 0), seeds=(5, 6)))
    assert other[0] != other[1]


def test_only_the_literal_objective_clips_by_default() -> None:
    assert build(FULL)[1].clip_norm() is None
    assert build(FULL, paper_literal=True)[1].clip_norm() == 1
    assert build(FULL, clip_norm=0.3)[1].clip_norm() == 0.3
