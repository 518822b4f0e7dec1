"""Encoders that read a layer's tokens and write prompt rows: LN over channels, then an MLP along the token axis.

The features come from a frozen model, so their normalisation z = (f - mean f) / std f is a constant that all draws of
a batch share. A mask m, one number per token, multiplies it: LN maps a masked token, a row of zeros, to its bias.

    LN(m * f) = gain * (m * z) + bias
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

State = dict[str, Tensor]
Position = Literal["before_ln", "after_ln"]
CACHED_FLOATS = 2**19  # hidden units that one call computes: 2 MB, about what a core's cache holds
PARTS = ("0.weight", "0.bias", "1.weight", "1.bias")
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


def stacked_masks(masks: Sequence[Tensor | None], z: Tensor) -> Tensor | None:
    """Masks (n, layers, tokens) as one tensor, (masks, n, layers, tokens); None if nothing is masked."""
    if all(mask is None for mask in masks):
        return None
    layers, tokens, n, _ = z.shape
    return torch.stack([z.new_ones(n, layers, tokens) if mask is None else mask for mask in masks])


def encode(
    weights: Mapping[str, Tensor],
    names: Sequence[str],
    z: Tensor,
    masks: Tensor | None,
    sizes: Sequence[int],
    act: str = "gelu",
    position: Position = "before_ln",
) -> list[Tensor]:
    """What the MLPs ``names`` write for every mask, each (masks, n, layers, rows, channels).

    ``weights`` are those of all clients, (clients, layers, ...); ``z`` (layers, tokens, n, channels) holds the images
    of one client after the other, ``sizes`` of them; ``masks`` (masks, n, layers, tokens) multiply tokens before LN, or
    after it (then the LN bias of a masked token goes too), and None is one mask of ones.

    Each layer of each client is one product, of all its images, masks and MLPs: no weight is copied for an image, and
    a client's numbers do not depend on the size of its neighbours. Small layers of a client are multiplied in one call.
    """
    joined = {part: torch.stack([weights[f"{name}.{part}"] for name in names], 2) for part in PARTS[: _depth(weights)]}
    joined |= {name: weights[name] for name in ("ln.weight", "ln.bias") if name in weights}
    per_client = zip(*(tensor.unbind() for tensor in joined.values()), strict=True)
    seen = None if masks is None else masks.permute(2, 3, 0, 1).contiguous()  # (layers, tokens, masks, n)
    written, first = [], 0
    for size, own in zip(sizes, per_client, strict=True):
        images = slice(first, first := first + size)
        hidden_floats = size * z.shape[3] * (1 if masks is None else len(masks)) * joined["0.bias"][0, 0].numel()
        chunk = max(1, CACHED_FLOATS // max(1, hidden_floats))  # layers in one call
        rows = []
        for start, *parts in zip(range(0, len(z), chunk), *(torch.split(tensor, chunk) for tensor in own), strict=True):
            layers, part = slice(start, start + chunk), dict(zip(joined, parts, strict=True))
            mask = None if seen is None else seen[layers, :, :, images]
            rows.append(_encode_layers(part, z[layers, :, images], mask, act, position))
        written.append(torch.cat(rows))
    return [mlp.permute(2, 3, 0, 1, 4) for mlp in torch.cat(written, 4).unbind(1)]


def _encode_layers(w: State, z: Tensor, masks: Tensor | None, act: str, position: Position) -> Tensor:
    """Layers of a client: z (layers, tokens, n, d), masks (layers, tokens, S, n) to (layers, mlps, rows, S, n, d)."""
    x = z[:, :, None]

    def affine(x: Tensor) -> Tensor:
        gain, bias = (w[name][:, None, None, None] for name in ("ln.weight", "ln.bias"))
        return torch.addcmul(bias, x, gain)

    if "ln.weight" in w and position == "after_ln":
        x = affine(x)
    if masks is not None:
        x = x * masks[..., None]
    if "ln.weight" in w and position == "before_ln":
        x = affine(x)
    y = torch.baddbmm(w["0.bias"].flatten(1)[..., None], w["0.weight"].flatten(1, 2), x.flatten(2))
    y = y.view(
        w["0.bias"].shape[0] * w["0.bias"].shape[1], w["0.bias"].shape[2], y.shape[2]
    )  # one matrix per layer and MLP
    if "1.weight" in w:
        y = torch.baddbmm(w["1.bias"].flatten(0, 1)[..., None], w["1.weight"].flatten(0, 1), ACTIVATIONS[act](y))
    return y.view(*w["0.bias"].shape[:2], y.shape[1], *x.shape[2:])


def _depth(weights: Mapping[str, Tensor]) -> int:
    """Tensors of an MLP: two for each of its layers."""
    return 4 if any(name.endswith("1.weight") for name in weights) else 2
