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


def mlp_floats(width: int, tokens: int, hidden: int, rows: int, mlps: int, affine: bool) -> int:
    """Floats of one layer's encoder, by formula."""
    mlp = tokens * hidden + hidden + hidden * rows + rows if hidden else tokens * rows + rows
    return mlps * mlp + (2 * width if affine else 0)


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
    a client's numbers do not depend on the size of its neighbours.
    """
    joined = {part: torch.stack([weights[f"{name}.{part}"] for name in names], 2) for part in PARTS[: _depth(weights)]}
    joined |= {name: weights[name] for name in ("ln.weight", "ln.bias") if name in weights}
    per_layer = zip(*(tensor.flatten(0, 1).unbind() for tensor in joined.values()), strict=True)
    seen = None if masks is None else masks.permute(2, 3, 0, 1).contiguous()  # (layers, tokens, masks, n)
    written = []
    for client, tokens in enumerate(torch.split(z, list(sizes), 2)):
        first = sum(sizes[:client])
        rows = []
        for layer, layer_tokens in enumerate(tokens.unbind()):
            mask = None if seen is None else seen[layer, ..., first : first + sizes[client]]
            rows.append(
                _encode_layer(dict(zip(joined, next(per_layer), strict=True)), layer_tokens, mask, act, position)
            )
        written.append(torch.stack(rows))
    return [mlp.permute(2, 3, 0, 1, 4) for mlp in torch.cat(written, 4).unbind(1)]


def _encode_layer(w: State, z: Tensor, mask: Tensor | None, act: str, position: Position) -> Tensor:
    """One layer of one client: z (tokens, n, channels), masks (tokens, S, n) to (mlps, rows, S, n, channels)."""
    x = z[:, None]
    if "ln.weight" in w and position == "after_ln":
        x = torch.addcmul(w["ln.bias"], x, w["ln.weight"])
    if mask is not None:
        x = x * mask[..., None]
    if "ln.weight" in w and position == "before_ln":
        x = torch.addcmul(w["ln.bias"], x, w["ln.weight"])
    y = torch.addmm(w["0.bias"].view(-1, 1), w["0.weight"].flatten(0, 1), x.flatten(1))
    y = y.view(*w["0.bias"].shape, y.shape[1])
    if "1.weight" in w:
        y = torch.baddbmm(w["1.bias"][..., None], w["1.weight"], ACTIVATIONS[act](y))
    return y.view(*y.shape[:2], *x.shape[1:])


def _depth(weights: Mapping[str, Tensor]) -> int:
    """Tensors of an MLP: two for each of its layers."""
    return 4 if any(name.endswith("1.weight") for name in weights) else 2
