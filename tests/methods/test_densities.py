"""The objective in log form, on distributions small enough to integrate."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.methods._densities import Gaussian, kl_normal, log_mean_exp, log_normal, mixture_gain


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=rng(), dtype=torch.float64)


def gaussian(mean: Tensor, std: float) -> Gaussian:
    return Gaussian(mean, torch.full_like(mean, 2 * math.log(std)))


def test_log_normal_is_torchs_summed_over_a_layer() -> None:
    value, mean = normal(5, 3, 2, 4), torch.zeros(5, 3, 2, 4, dtype=torch.float64)
    expected = torch.distributions.Normal(mean, 0.3).log_prob(value).sum((-2, -1))
    torch.testing.assert_close(log_normal(value, gaussian(mean, 0.3)), expected)


def test_kl_is_torchs_and_zero_for_equal_distributions() -> None:
    a, b = gaussian(normal(5, 3, 2, 4), 0.3), gaussian(torch.ones(5, 3, 2, 4, dtype=torch.float64), 2.0)
    one, other = (torch.distributions.Normal(g.mean, g.std) for g in (a, b))
    expected = torch.distributions.kl_divergence(one, other).sum((-3, -2, -1))
    torch.testing.assert_close(kl_normal(a, b), expected)
    assert kl_normal(a, a).eq(0).all()


def test_the_drawn_kl_has_the_closed_form_as_its_mean() -> None:
    q, prior = gaussian(torch.tensor([[[0.5, -0.2]]]).double(), 0.4), gaussian(torch.zeros(1, 1, 2).double(), 1.0)
    p = q.mean + q.std * normal(40_000, 1, 1, 2)
    drawn = (log_normal(p, q) - log_normal(p, prior)).sum(-1)
    assert drawn.mean() == pytest.approx(float(kl_normal(q, prior)), abs=4 * float(drawn.std()) / 200)


def test_equal_components_gain_exactly_nothing() -> None:
    source = 1e4 * torch.randn(7, 12, generator=rng())
    assert mixture_gain(source, [source]).eq(0).all()
    assert mixture_gain(source, [source] * 2).abs().max() < 1e-6
    assert mixture_gain(source, []).eq(0).all()


def test_one_further_component_gives_the_softplus_form() -> None:
    source, other = 30 * normal(2, 50, 12)
    delta = (other - source).sum(-1)
    torch.testing.assert_close(mixture_gain(source, [other]), math.log(2) - F.softplus(delta), rtol=1e-6, atol=1e-6)


def test_the_gain_is_the_density_under_the_source_over_the_mixtures() -> None:
    source, first, second = normal(3, 6, 2)
    omega = (source.sum(-1).exp() + first.sum(-1).exp() + second.sum(-1).exp()) / 3
    torch.testing.assert_close(mixture_gain(source, [first, second]), source.sum(-1) - omega.log())


@pytest.mark.parametrize("std", [1e-3, 10.0])
def test_finite_in_9216_dimensions(std: float) -> None:
    mean = torch.randn(4, 12, 1, 768, generator=rng()).requires_grad_()
    source, other = gaussian(mean, std), gaussian(0.9 * mean, std)
    p = source.mean + source.std * torch.randn(4, 12, 1, 768, generator=rng())
    prior = gaussian(torch.zeros(()), 1.0)
    densities = [log_normal(p, psi) for psi in (source, other)]
    gap = (log_normal(p, prior) - densities[0]).sum(-1)
    bound = log_mean_exp((gap + mixture_gain(densities[0], densities[1:]))[None])
    (grad,) = torch.autograd.grad(bound.sum(), mean)
    assert torch.isfinite(bound).all()
    assert torch.isfinite(grad).all()


def test_average_gain_of_two_overlapping_components_matches_quadrature() -> None:
    source, other = (gaussian(torch.tensor([[[m]]]).double(), 1.0) for m in (0.0, 1.5))
    x = torch.linspace(-12, 12, 20_001, dtype=torch.float64).view(-1, 1, 1, 1)
    densities = [log_normal(x, psi) for psi in (source, other)]
    grid = (densities[0].sum(-1).exp() * mixture_gain(densities[0], densities[1:])).sum() * (24 / 20_000)
    p = source.mean + normal(40_000, 1, 1, 1)
    drawn = mixture_gain(log_normal(p, source), [log_normal(p, other)])
    assert 0 < float(grid) < math.log(2)
    assert float(drawn.mean()) == pytest.approx(float(grid), abs=4 * float(drawn.std()) / 200)
    assert drawn.min() < 0  # a single draw may be negative


def test_components_far_apart_reach_the_ceiling() -> None:
    source, far = torch.zeros(3, 12), torch.full((3, 12), -100.0)
    assert mixture_gain(source, [far]).tolist() == pytest.approx([math.log(2)] * 3)
    assert mixture_gain(source, [far, far, far]).tolist() == pytest.approx([math.log(4)] * 3)
    assert mixture_gain(source, [far], per_layer=True).tolist() == pytest.approx([12 * math.log(2)] * 3)


def test_two_equal_samples_are_one() -> None:
    weights = normal(6)
    torch.testing.assert_close(log_mean_exp(torch.stack([weights, weights])), weights)


def test_more_importance_samples_tighten_the_bound() -> None:
    weights = normal(4, 20_000)
    bounds = [float(log_mean_exp(weights[:j]).mean()) for j in (1, 2, 4)]
    assert bounds[0] < bounds[1] < bounds[2] < 0.5  # log of the mean weight: 1/2 for a log-normal
