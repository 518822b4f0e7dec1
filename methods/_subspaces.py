"""Clients whose low-rank updates write into similar subspaces, found by spectral clustering."""

import torch
from torch import Tensor


def subspace_distances(factors: Tensor) -> Tensor:
    """1 - (1/r) |U_i^T U_j|^2 of the column spaces of (n, ..., d, r), averaged over the axes between, (n, n).

    0 for equal spaces whatever their basis, 1 for orthogonal ones.
    """
    bases = torch.linalg.svd(factors.double(), full_matrices=False)[0].flatten(1, -3)  # (n, layers, d, r)
    overlaps = torch.einsum("ildr,jlds->ijlrs", bases, bases).square().sum((-1, -2)).mean(-1)
    distances: Tensor = (1 - overlaps / bases.shape[-1]).clamp(min=0)
    return distances


def spectral_groups(distances: Tensor, least: int, most: int) -> Tensor:
    """The group of each of n clients, (n,): as many groups as the largest gap between eigenvalues says."""
    count = len(distances)
    most = min(most, count - 1)
    if most < 2:  # nothing to divide
        return torch.zeros(count, dtype=torch.int64)
    apart = ~torch.eye(count, dtype=torch.bool)
    similar = (-distances.cpu().square() / (2 * distances.cpu()[apart].median().clamp(min=1e-6) ** 2)).exp()
    scale = similar.sum(1).rsqrt()
    values, vectors = torch.linalg.eigh(torch.eye(count, dtype=torch.float64) - scale[:, None] * similar * scale)
    least = min(least, most)
    groups = least + int(values.diff()[least - 1 : most].argmax())
    rows = torch.nn.functional.normalize(vectors[:, :groups])
    return _k_means(rows, groups)


def _k_means(rows: Tensor, groups: int) -> Tensor:
    """Lloyd's algorithm, from rows that lie far from each other: no random start."""
    centres = rows[:1]
    while len(centres) < groups:
        centres = torch.cat([centres, rows[torch.cdist(rows, centres).amin(1).argmax()][None]])
    nearest = torch.cdist(rows, centres).argmin(1)
    for _ in range(100):
        centres = torch.stack(
            [rows[nearest == g].mean(0) if (nearest == g).any() else centres[g] for g in range(groups)]
        )
        before, nearest = nearest, torch.cdist(rows, centres).argmin(1)
        if torch.equal(before, nearest):
            break
    return nearest
