"""Likeness of FedMGP's prompt groups: to what the server sent, and to each other."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def slot_likeness(groups: Tensor, slots: Tensor) -> Tensor:
    """The cosine of each group with the slot that is most like it, (K, groups)."""
    rows, columns = (F.normalize(x.flatten(2), dim=-1) for x in (groups, slots))
    return (rows @ columns.mT).amax(-1)


def group_distance(features: Tensor) -> Tensor:
    """Mean absolute difference between groups (K, groups, n, d), over all pairs of groups and all d, (K, n)."""
    groups = features.shape[1]
    pairs = [(i, j) for i in range(groups) for j in range(i + 1, groups)]
    distances = [(features[:, i] - features[:, j]).abs().mean(-1) for i, j in pairs]
    return torch.stack(distances).mean(0) if distances else torch.zeros_like(features[:, 0, :, 0])
