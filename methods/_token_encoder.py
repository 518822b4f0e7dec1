"""Encoders that read a layer's tokens and write prompt rows: LN over channels, then an MLP along the token axis.

Every function takes any leading axes (samples, layers), the same for weights, features and masks. The features come
from a frozen model, so their normalisation is a constant; the rest of LN is linear and changes places with the first
layer of the MLP:

    W LN(m * f) = gain * ((W * m) z) + (W 1) bias        z = (f - mean f) / std f, m one number per token

A mask thus acts on the columns of W (hidden x tokens) and never on the features (tokens x channels): all draws of a
batch share one z. A masked token gives z = 0, for LN maps a row of zeros to its bias.
"""

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

State = dict[str, Tensor]
Position = Literal["before_ln", "after_ln"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


def normalised(features: Tensor) -> Tensor:
    """LN without its gain and bias, over channels."""
    return F.layer_norm(features, features.shape[-1:])


def norm_init(layers: int, width: int) -> State:
    """Gain and bias of each layer's LN, shared by the MLPs of that layer."""
    return {"ln.weight": torch.ones(layers, width), "ln.bias": torch.zeros(layers, width)}


def mlp_init(name: str, layers: int, tokens: int, hidden: int, rows: int, rng: torch.Generator) -> State:
    """One MLP per layer, tokens -> hidden -> rows (hidden = 0: linear), each as torch draws a linear layer."""
    sizes = [tokens, hidden, rows] if hidden else [tokens, rows]
    state: State = {}
    for index, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        bound = 1 / math.sqrt(fan_in)
        for kind, shape in (("weight", (fan_out, fan_in)), ("bias", (fan_out,))):
            draw = torch.rand(layers, *shape, generator=rng)
            state[f"{name}.{index}.{kind}"] = (2 * draw - 1) * bound
    return state


def mlp_floats(width: int, tokens: int, hidden: int, rows: int, mlps: int, affine: bool) -> int:
    """Floats of one layer's encoder, by formula."""
    mlp = tokens * hidden + hidden + hidden * rows + rows if hidden else tokens * rows + rows
    return mlps * mlp + (2 * width if affine else 0)


def encode(
    weights: Mapping[str, Tensor],
    name: str,
    z: Tensor,
    mask: Tensor | None = None,
    act: str = "gelu",
    position: Position = "before_ln",
) -> Tensor:
    """Prompt rows (..., rows, channels) of MLP ``name`` from normalised tokens ``z`` (..., tokens, channels).

    ``mask`` (..., tokens) multiplies tokens before LN, or after it (then the LN bias of a masked token goes too).
    """
    first = weights[f"{name}.0.weight"]
    seen = first if mask is None else first * mask[..., None, :]
    x = seen @ z
    if "ln.weight" in weights:
        shifts = (first if position == "before_ln" else seen).sum(-1, keepdim=True)
        x = x * weights["ln.weight"][..., None, :] + shifts * weights["ln.bias"][..., None, :]
    x = x + weights[f"{name}.0.bias"][..., None]
    if f"{name}.1.weight" in weights:
        x = weights[f"{name}.1.weight"] @ ACTIVATIONS[act](x) + weights[f"{name}.1.bias"][..., None]
    return x
