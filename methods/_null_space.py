"""Which directions FedPR keeps a prompt from moving along, and steps without them."""

import math

import torch
from torch import Tensor

from fedprompt.core.rng import torch_rng

RANK_TOLERANCE = 1e-6  # singular values below this share of the largest one count as zero


def removed_directions(prompts: Tensor, projector: str = "gram_full", ratio: float = 0.8) -> Tensor:
    """For every slice of (..., T, d) an orthonormal basis (..., d, r) of what a step loses; Q = I - U U^T.

    The Gram matrix of T rows spans at most T directions, and the official rule removes more. There the others are what
    the rounding of a singular value decomposition leaves; here they are drawn from a fixed key.
    """
    rows, width = prompts.shape[-2:]
    sizes: Tensor
    right: Tensor
    _, sizes, right = torch.linalg.svd(prompts.double(), full_matrices=False)
    certain = (sizes > RANK_TOLERANCE * sizes.amax(-1, keepdim=True))[..., None, :] if rows else sizes[..., None, :]
    if projector == "exact":
        return (right.mT * certain).to(prompts)
    if projector == "thin":
        return (right.mT * certain)[..., : rows - _remaining(ratio, rows)].to(prompts)
    count = width - _remaining(ratio, width)
    fixed = torch.randn(width, width, generator=torch_rng(0, "init", "fedpr"), dtype=torch.float64).to(prompts.device)
    spanned = right.shape[-2]
    head = torch.where(certain.bool(), right.mT, fixed[:, :spanned])
    tail = fixed[:, spanned:].expand(*head.shape[:-1], width - spanned)
    basis: Tensor = torch.linalg.qr(torch.cat([head, tail], dim=-1)[..., :count])[0]
    return basis.to(prompts)


def _remaining(ratio: float, directions: int) -> int:
    return math.ceil(ratio * directions - 1e-9)  # 0.55 * 100 is a little more than 55


def project(step: Tensor, removed: Tensor, fro_normalize: bool = False) -> Tensor:
    """step Q, row by row, without ever forming the d x d matrix Q."""
    projected = step - (step @ removed) @ removed.mT
    if fro_normalize:  # |Q|_F^2 is the trace of a projector: the number of directions kept
        projected = projected / (step.shape[-1] - removed.square().sum((-1, -2), keepdim=True)).sqrt()
    return projected
