"""Worst-case shifts of features, found by a few steps of ascent, and the soft maximum of what they cost."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.methods._batch import Batch

ASCENT = 4  # steps of a shift


def mean_length(shift: Tensor) -> Tensor:
    """Of the rows (K, n, d), (K,)."""
    return shift.norm(dim=-1).mean(1) if shift.shape[1] else shift.new_zeros(len(shift))


def ascend(value: Callable[[Tensor], Tensor], start: Tensor, radius: float) -> Tensor:
    """A few steps of length ``radius`` per row that raise each client's ``value``; a constant."""
    shift = start
    for _ in range(ASCENT):
        with torch.enable_grad():
            leaf = shift.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(value(leaf).sum(), leaf)
        shift = (shift + radius * F.normalize(gradient, dim=-1)).clamp(-1, 1)
    return shift.detach()


def soft_maximum(each: Tensor, batch: Batch, temperature: Tensor) -> Tensor:
    """Of a client's real images, (K, B) to (K,): t log sum exp(a / t); 0 for a client without images."""
    some = batch.mask.any(1)
    counted = batch.mask | ~some[:, None]  # a sum over nothing has no gradient
    scaled = (each / temperature[:, None]).masked_fill(~counted, float("-inf"))
    return temperature * scaled.logsumexp(1) * some
