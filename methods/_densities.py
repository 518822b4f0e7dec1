"""Densities of semi-implicit variational inference: Gaussians whose parameters are themselves random.

psi = (mean, log-variance) comes from a random encoder, and p from N(psi). The density of p, an integral over psi, is
bounded by a mixture of the psi that p was drawn from and S others. In thousands of dimensions a density underflows and
a ratio of two overflows, so every function stays on the log scale.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

LOG_2PI = math.log(2 * math.pi)


class Gaussian(NamedTuple):
    """Independent normals, (..., layers, rows, width). A log-variance of -inf is a point mass."""

    mean: Tensor
    logvar: Tensor

    @classmethod
    def point(cls, mean: Tensor) -> Self:
        return cls(mean, torch.full_like(mean, -math.inf))

    @classmethod
    def joined(cls, layers: Sequence[Self]) -> Self:
        """Gaussians of single layers, (n, 1, rows, width) each, as one over all of them."""
        return cls(*(torch.cat(parts, 1) for parts in zip(*layers, strict=True)))

    @property
    def std(self) -> Tensor:
        return (0.5 * self.logvar).exp()

    def draw(self, noise: Tensor | None) -> Tensor:
        """The reparameterised sample; without noise, the mean."""
        return self.mean if noise is None else self.mean + self.std * noise


def log_normal(value: Tensor, psi: Gaussian) -> Tensor:
    """log N(value; psi), summed over the rows and channels of each layer, (..., layers)."""
    squared = (value - psi.mean).square() * (-psi.logvar).exp()
    return -0.5 * (squared + psi.logvar + LOG_2PI).sum((-2, -1))


def kl_normal(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q || p), summed over everything but the samples, (...)."""
    ratio = q.logvar - p.logvar
    distance = (q.mean - p.mean).square() * (-p.logvar).exp()
    return 0.5 * (distance + ratio.exp() - 1 - ratio).sum((-3, -2, -1))


def mixture_gain(source: Tensor, others: Sequence[Tensor], per_layer: bool = False) -> Tensor:
    """log q(p | psi) - log Omega(p): one draw of A_S, in expectation between 0 and log(S + 1), (...).

    ``source`` and ``others`` are `log_normal` of p under the psi it was drawn from and under S further ones. The
    marginal is over all layers jointly; ``per_layer`` treats each layer as a separate variable, which multiplies the
    ceiling by the number of layers. A single draw may be negative; reaching the ceiling means that the components do
    not overlap.
    """
    deltas = [other - source if per_layer else (other - source).sum(-1) for other in others]
    first = source if per_layer else source.sum(-1)
    # Relative to the source: equal components give exactly 0, and large numbers cancel before the exponential.
    gain = math.log(len(others) + 1) - torch.stack([torch.zeros_like(first), *deltas]).logsumexp(0)
    return gain.sum(-1) if per_layer else gain


def log_mean_exp(values: Tensor) -> Tensor:
    """log of the mean of exp over axis 0, (J, ...) to (...)."""
    return values.logsumexp(0) - math.log(len(values))
