"""Semi-implicit variational inference in log form: a Gaussian whose parameters are themselves random.

psi = (mean, log-variance) comes from a random encoder and p from N(psi). The density of p, an integral over psi, is
bounded by a mixture of the psi that made p and S others. In thousands of dimensions a density underflows and a ratio
of two overflows, so nothing here leaves the log scale.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

LOG_2PI = math.log(2 * math.pi)


class Gaussian(NamedTuple):
    """Independent normals, (..., layers, rows, width). A log-variance of -inf is a point mass."""

    mean: Tensor
    logvar: Tensor

    @property
    def std(self) -> Tensor:
        return (0.5 * self.logvar).exp()


def log_normal(value: Tensor, psi: Gaussian) -> Tensor:
    """log N(value; psi), summed over the rows and channels of each layer, (..., layers)."""
    squared = (value - psi.mean).square() * (-psi.logvar).exp()
    return -0.5 * (squared + psi.logvar + LOG_2PI).sum((-2, -1))


def kl_normal(q: Gaussian, p: Gaussian) -> Tensor:
    """KL(q || p), summed over everything but the samples, (...)."""
    ratio = q.logvar - p.logvar
    distance = (q.mean - p.mean).square() * (-p.logvar).exp()
    return 0.5 * (distance + ratio.exp() - 1 - ratio).sum((-3, -2, -1))


def mixture_gain(own: Tensor, others: Sequence[Tensor], per_layer: bool = False) -> Tensor:
    """log q(p | psi) - log Omega(p): one draw of A_S, in expectation between 0 and log(S + 1), (...).

    ``own`` and ``others`` are `log_normal` of p under the psi that made it and under S further ones. The marginal
    is over all layers jointly; ``per_layer`` treats each layer as a variable of its own (ceiling: layers times more).
    A single draw may be negative; a ceiling that is reached means that the components do not overlap.
    """
    deltas = [other - own if per_layer else (other - own).sum(-1) for other in others]
    first = own if per_layer else own.sum(-1)
    # Relative to the own component: equal components give exactly 0 and large numbers cancel before the exponential.
    gain = math.log(len(others) + 1) - torch.stack([torch.zeros_like(first), *deltas]).logsumexp(0)
    return gain.sum(-1) if per_layer else gain


def importance_bound(log_weights: Tensor) -> Tensor:
    """log of the mean of J weights, (J, ...) to (...)."""
    return log_weights.logsumexp(0) - math.log(len(log_weights))
