"""Affine maps and attention in which every stacked client has its own weights."""

import torch
from torch import Tensor

from fedprompt.methods._contract import State

QUERY, KEY, VALUE, OUT = range(4)  # maps of an attention: one tensor of weights (4, d, d) and one of biases (4, d)


def affine_init(name: str, inputs: int, outputs: int, rng: torch.Generator) -> State:
    """A linear layer's first values, by torch's default."""
    return _draw(name, (outputs, inputs), (outputs,), inputs, rng)


def attention_init(name: str, width: int, rng: torch.Generator) -> State:
    """The same for the four maps of an attention."""
    return _draw(name, (4, width, width), (4, width), width, rng)


def multihead_init(name: str, width: int, rng: torch.Generator) -> State:
    """The same as `nn.MultiheadAttention` begins: Xavier's rule for queries, keys and values as one map, no biases."""
    bounds = torch.tensor([6 / (4 * width)] * 3 + [1 / width]).sqrt()
    weight = (2 * torch.rand(4, width, width, generator=rng) - 1) * bounds[:, None, None]
    return {f"{name}.weight": weight, f"{name}.bias": torch.zeros(4, width)}


def _draw(name: str, weight: tuple[int, ...], bias: tuple[int, ...], inputs: int, rng: torch.Generator) -> State:
    shapes = {f"{name}.weight": weight, f"{name}.bias": bias}
    return {key: (2 * torch.rand(*shape, generator=rng) - 1) * inputs**-0.5 for key, shape in shapes.items()}


def affine(theta: State, name: str, x: Tensor, part: int | None = None) -> Tensor:
    """Each client's own map of its own rows, (K, ..., in) to (K, ..., out); ``part`` is one of an attention's."""
    weight, bias = theta[f"{name}.weight"], theta[f"{name}.bias"]
    if part is not None:
        weight, bias = weight[:, part], bias[:, part]
    return torch.baddbmm(bias[:, None], x.flatten(1, -2), weight.mT).view(*x.shape[:-1], weight.shape[1])


def attend(
    theta: State,
    name: str,
    query: Tensor,
    context: Tensor,
    heads: int,
    mask: Tensor | None = None,
    values: Tensor | None = None,
) -> Tensor:
    """Multi-head attention of (K, q, d) over (K, n, d); ``mask`` (K, n) is true for rows that may be seen.

    The answer mixes ``values`` of the same shape, if given, and otherwise the rows of ``context`` themselves.
    """

    def split(x: Tensor, part: int) -> Tensor:
        return torch.unflatten(affine(theta, name, x, part), -1, (heads, -1)).transpose(1, 2)

    queries, keys = split(query, QUERY), split(context, KEY)
    answers = split(context if values is None else values, VALUE)
    scores = queries @ keys.mT * queries.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
    return affine(theta, name, (scores.softmax(-1) @ answers).transpose(1, 2).flatten(2), OUT)
