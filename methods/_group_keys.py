"""The keys of SGPT's groups: how near an image is, how popular a group is, and whose key counts how much."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

FEW = 50  # a key chosen at most this often in a round is averaged with equal weights
FLOOR = 5e-4  # keeps a group that was never chosen from costing nothing, however far its key


def similarity(features: Tensor, keys: Tensor) -> Tensor:
    """Cosine of each image's query, the rectified frozen feature, with its client's keys, (K, B, G)."""
    return torch.einsum("kbd,kgd->kbg", F.normalize(F.relu(features), dim=-1), F.normalize(keys, dim=-1))


def popularity(counts: Tensor, like: Tensor) -> Tensor:
    """What a distance is multiplied by in training, (K, G): a group's share of all choices; 1 before the first."""
    total = counts.sum(-1, keepdim=True)
    return torch.where(total > 0, counts / total.clamp(min=1) + FLOOR, 1.0).to(like.dtype)


def key_weights(counts: Tensor) -> Tensor:
    """Weights of the cohort's keys, (K, G): by how often each client chose the group, equal if hardly anyone did."""
    total = counts.sum(0)
    return torch.where(total > FEW, counts.double() / total.clamp(min=1), 1 / len(counts))


def orthogonal(keys: Tensor) -> Tensor:
    """Rows made orthonormal in order, as by Gram and Schmidt."""
    basis: Tensor
    triangle: Tensor
    basis, triangle = torch.linalg.qr(keys.T)
    return (basis * triangle.diagonal().sign()).T.contiguous()


def one_hot(index: Tensor, like: Tensor) -> Tensor:
    """Places along the last axis of ``like`` as one-hot rows, in its type."""
    return F.one_hot(index, like.shape[-1]).to(like.dtype)
