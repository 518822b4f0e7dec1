"""Other clients' contexts as experts: which are nearest, and the attention that mixes what they say about an image."""

import torch
from torch import Tensor

from fedprompt.methods._attention import KEY, OUT, QUERY, VALUE, affine
from fedprompt.methods._contract import State


def nearest(own: Tensor, pool: Tensor, eligible: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` contexts of ``pool`` (N, m, d) nearest to each of ``own`` (K, m, d) among ``eligible`` (K, N), and
    which of them are there at all, (K, count, m, d) and (K, count). Ties go to the first."""
    distance = torch.cdist(own.flatten(1), pool.flatten(1), compute_mode="donot_use_mm_for_euclid_dist")
    order = distance.masked_fill(~eligible, float("inf")).argsort(dim=1, stable=True)[:, :count]
    return pool[order], eligible.gather(1, order)


def mix(gate: State, query: Tensor, features: Tensor, present: Tensor, heads: int, kappa: float) -> Tensor:
    """Attention of each image (K, B, D) over the experts' features of each class (K, E, C, D), (K, B, C, D)."""

    def split(x: Tensor, part: int) -> Tensor:
        projected = affine(gate, "gate", x, part)
        return torch.unflatten(projected, -1, (heads, projected.shape[-1] // heads))

    queries, keys, values = split(query, QUERY), split(features, KEY), split(features, VALUE)
    scores = (kappa or queries.shape[-1] ** -0.5) * torch.einsum("kbhe,kxche->kbchx", queries, keys)
    weights = scores.masked_fill(~present[:, None, None, None], float("-inf")).softmax(-1)
    return affine(gate, "gate", torch.einsum("kbchx,kxche->kbche", weights, values).flatten(-2), OUT)
