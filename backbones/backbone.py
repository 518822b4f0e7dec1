"""The frozen vision transformer. Prompts are inputs: they edit the tokens that enter its blocks.

An *edit* maps (block index, tokens entering that block) to the tokens the block really gets. Row 0 is CLS, prompts
come directly after it and carry no positional embedding. Shallow, deep and inserted prompts are edits; so is
whatever a method invents, because it sees the tokens of every block. Rows that the next block will not see are
returned separately, as `Prompted`: the block attends to them, and their own outputs are not computed.

A *block pass* replaces the blocks themselves: it maps (block index, block, tokens, rows) to the block's first output
rows. Low-rank updates and adapters, which act inside a block or parallel to it, are block passes around `block_rows`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.errors import UserError

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

FEW_KEYS = 32  # up to here attention is faster on a CPU without the fused kernel, and its matrix is small


class Prompted(NamedTuple):
    """Tokens of a block, and prompt rows for this block only: keys and values for the tokens, but never queries."""

    tokens: Tensor
    prompts: Tensor  # (n, T, d)


Edit = Callable[[int, Tensor], Tensor | Prompted]
BlockPass = Callable[[int, Any, Tensor, int], Tensor]
Change = dict[Literal["query", "key", "value"], Tensor]


def insert(tokens: Tensor, prompt: Tensor) -> Tensor:
    """Prompt rows (n, T, d) between CLS and the rest."""
    return torch.cat([tokens[:, :1], prompt, tokens[:, 1:]], dim=1)


def shallow(prompt: Tensor, at: int = 0) -> Edit:
    """The edit that inserts (n, T, d) once, before block ``at``; the rows then propagate like any other token.

    Shallow visual prompt tuning: ``vit.cls(images, shallow(prompt))``.
    """
    return lambda block, tokens: insert(tokens, prompt) if block == at else tokens


def deep(prompts: Tensor, start: int = 0, after_depth: Literal["propagate", "drop"] = "propagate") -> Edit:
    """The edit that gives each block from ``start`` on its own rows from (n, depth, T, d).

    What a block makes of its rows is discarded before the next one. The rows of the last prompted block propagate or
    are dropped. Deep visual prompt tuning: ``vit.cls(images, deep(prompts))``.
    """
    depth = prompts.shape[1]

    def edit(block: int, tokens: Tensor) -> Tensor | Prompted:
        layer = block - start
        if not 0 <= layer < depth:
            return tokens
        stays = layer == depth - 1 and after_depth == "propagate"
        return insert(tokens, prompts[:, layer]) if stays else Prompted(tokens, prompts[:, layer])

    return edit


class FrozenViT(nn.Module):
    """A plain timm ViT (class token, absolute positions, pre-norm blocks) that never trains.

    Methods read `cls` or `forward` with their prompts as an edit. ``offers`` is what a method may declare as a need;
    ``depth``, ``width``, ``tokens`` (CLS and patches), ``patch_size`` and ``image_size`` are its shapes. All clients
    share one backbone: nothing in it may change.
    """

    mean: Tensor
    std: Tensor
    offers = frozenset({"images", "features", "prompts", "layer inputs"})

    def __init__(
        self, vit: "VisionTransformer", name: str, weights: str, mean: Sequence[float], std: Sequence[float]
    ) -> None:
        super().__init__()
        _require_plain(vit, name)
        self.vit = vit.requires_grad_(False)
        self.name = name
        self.weights = weights  # their identity: a content hash, "hub" or "random"
        self.depth, self.width = len(vit.blocks), int(vit.embed_dim)
        self.image_size = int(vit.patch_embed.img_size[0])
        self.patch_size = int(vit.patch_embed.patch_size[0])
        self.tokens = 1 + int(vit.patch_embed.num_patches)  # CLS and patches
        self.keep_statistics(mean, std)
        self.eval()

    def keep_statistics(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Register the channels' mean and deviation, given for pixels from 0 to 1, for pixels from 0 to 255."""
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, 255 * torch.tensor(values).view(1, 3, 1, 1), persistent=False)

    def pixels(self, images: Tensor) -> Tensor:
        """uint8 images on the backbone's device, normalised as its weights expect."""
        return (images.to(self.device, self.mean.dtype) - self.mean) / self.std

    def train(self, mode: bool = True) -> "FrozenViT":  # noqa: ARG002
        """Stays in evaluation mode: dropout of a frozen backbone is off even while prompts train."""
        return super().train(False)

    @property
    def device(self) -> torch.device:
        """Where the weights are, and where images are moved."""
        return self.mean.device

    def embed(self, images: Tensor) -> Tensor:
        """uint8 images (n, 3, h, w) to the tokens that enter block 0, (n, 1+M, d); tokens are returned unchanged."""
        if images.dim() == 3:
            return images
        tokens: Tensor = self.vit.norm_pre(self.vit._pos_embed(self.vit.patch_embed(self.pixels(images))))
        return tokens

    def forward(
        self,
        images: Tensor,
        edit: Edit | None = None,
        rows: int = 1,
        stop: int | None = None,
        block_pass: BlockPass | None = None,
    ) -> Tensor:
        """The final norm of output rows 0..rows-1, (n, rows, d).

        Args:
            images: uint8 images, or the tokens that `embed` made of them.
            edit: prompts, see the module's docstring.
            rows: how many rows are wanted; row 0 is CLS. The last block is computed for those rows only.
            stop: leave out the blocks from this one on; None runs all of them.
            block_pass: adapters or low-rank updates, see the module's docstring.
        """
        tokens = self.embed(images)
        last = (self.depth if stop is None else stop) - 1
        for index, block in enumerate(self.vit.blocks[: last + 1]):
            edited = tokens if edit is None else edit(index, tokens)
            tokens, prompts = edited if isinstance(edited, Prompted) else (edited, None)
            wanted = rows if index == last else tokens.shape[1]
            if block_pass is None:
                tokens = block_rows(block, tokens, wanted, prompts=prompts)
            elif prompts is None:
                tokens = block_pass(index, block, tokens, wanted)
            else:  # a block pass takes no separate rows: they come last and are cut off
                tokens = block_pass(index, block, torch.cat([tokens, prompts], dim=1), wanted)
        normed: Tensor = self.vit.norm(tokens[:, :rows])
        return normed

    def cls(
        self,
        images: Tensor,
        edit: Edit | None = None,
        stop: int | None = None,
        block_pass: BlockPass | None = None,
    ) -> Tensor:
        """The image feature of every method: the final norm of the CLS row, (n, d). Arguments as for `forward`."""
        return self.forward(images, edit, stop=stop, block_pass=block_pass)[:, 0]

    @torch.no_grad()
    def layer_inputs(self, images: Tensor, depth: int | None = None) -> Tensor:
        """Tokens entering the first ``depth`` blocks of a pass without prompts, (n, depth, 1+M, d)."""
        inputs = [self.embed(images)]
        for block in self.vit.blocks[: (depth or self.depth) - 1]:
            inputs.append(block(inputs[-1]))
        return torch.stack(inputs, dim=1)


def block_rows(
    block: Any,
    tokens: Tensor,
    rows: int,
    added: Callable[[Tensor], Change] | None = None,
    prompts: Tensor | None = None,
) -> Tensor:
    """A pre-norm block's output for its first ``rows`` rows: only they are queries, every token is key and value.

    Args:
        block: a block of the backbone.
        tokens: what enters it, (n, tokens, d).
        rows: how many output rows are wanted.
        added: from the normed tokens to what is added to queries, keys and values, (n, tokens, d) each (low-rank
            updates and side networks).
        prompts: further keys and values, (n, T, d), with no output of their own.
    """
    normed, attention = block.norm1(tokens), block.attn
    keys = [normed] if prompts is None else [normed, block.norm1(prompts)]
    few = added is None and 4 * rows <= attention.head_dim and isinstance(attention.k_norm, nn.Identity)
    if few or normed.requires_grad:  # else only the prompts need a gradient: projected separately, only they get one
        keys = [_joined(keys)]
    mixed = (
        _few_queries(attention, normed[:, :rows], *keys) if few else _attended(attention, normed[:, :rows], keys, added)
    )
    attended_rows = tokens[:, :rows] + block.ls1(attention.proj(attention.norm(mixed)))
    output: Tensor = attended_rows + block.ls2(block.mlp(block.norm2(attended_rows)))
    return output


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)


def _attended(
    attention: Any,
    queries: Tensor,
    keys: Sequence[Tensor],
    added: Callable[[Tensor], Change] | None = None,
) -> Tensor:
    """Attention of the normed rows ``queries`` over the normed rows of all ``keys``, (n, rows, d)."""
    per_query, per_key, per_value = _projections(attention)
    query = F.linear(queries, *per_query)
    key, value = (_joined([F.linear(rows, *each) for rows in keys]) for each in (per_key, per_value))
    if added is not None:
        change = added(_joined(keys))
        query = query + change["query"][:, : query.shape[1]] if "query" in change else query
        key = key + change["key"] if "key" in change else key
        value = value + change["value"] if "value" in change else value

    def heads(x: Tensor) -> Tensor:
        return torch.unflatten(x, -1, (attention.num_heads, -1)).transpose(1, 2)

    query, key, value = attention.q_norm(heads(query)), attention.k_norm(heads(key)), heads(value)
    if key.shape[2] > FEW_KEYS or key.device.type not in {"cpu", "meta"}:
        gathered = F.scaled_dot_product_attention(query, key, value)
    else:
        shares = ((query * attention.scale).flatten(0, 1) @ key.flatten(0, 1).mT).softmax(-1)
        gathered = torch.unflatten(shares @ value.flatten(0, 1), 0, (len(queries), -1))
    return gathered.transpose(1, 2).flatten(2)


def _few_queries(attention: Any, queries: Tensor, keys: Tensor) -> Tensor:
    """The same for a few rows, without computing the keys and values of tokens.

    The queries and the pooled tokens are projected instead. A key's bias adds the same to all scores of a query, which
    softmax undoes.
    """
    per_query, per_key, per_value = _projections(attention)
    shape = (attention.num_heads, attention.head_dim)
    query = attention.q_norm(torch.unflatten(F.linear(queries, *per_query), -1, shape)) * attention.scale
    asked = torch.einsum("nrhe,hed->nrhd", query, torch.unflatten(per_key[0], 0, shape))
    shares = (asked.flatten(1, 2) @ keys.mT).softmax(-1)
    gathered = torch.unflatten(shares @ keys, 1, (-1, shape[0]))
    value = torch.einsum("nrhd,hed->nrhe", gathered, torch.unflatten(per_value[0], 0, shape)).flatten(2)
    return value if per_value[1] is None else value + per_value[1]


def _projections(attention: Any) -> list[tuple[Tensor, Tensor | None]]:
    """Weight and bias of queries, keys and values. Three products copy no gradient; a single one would."""
    weights, bias = attention.qkv.weight.chunk(3), attention.qkv.bias
    return list(zip(weights, (None,) * 3 if bias is None else bias.chunk(3), strict=True))


def _require_plain(vit: nn.Module, name: str) -> None:
    """Prompt rows come after row 0 and blocks are computed in parts, so only a plain ViT gives right results."""
    from timm.layers.attention import Attention  # here, because importing timm takes seconds and `methods` needs none
    from timm.models.vision_transformer import Block, VisionTransformer

    plain = (
        type(vit) is VisionTransformer  # a subclass may add tokens, as the distilled DeiT does
        and vit.has_class_token
        and vit.global_pool == "token"
        and vit.num_reg_tokens == 0
        and vit.pos_embed is not None
        and not vit.dynamic_img_size
        and isinstance(vit.fc_norm, nn.Identity)
        and all(type(b) is Block and type(b.attn) is Attention and b.attn.gate is None for b in vit.blocks)
    )
    if not plain:
        raise UserError(
            f"backbone {name!r} is not a plain ViT (class token, learned absolute positions, pre-norm blocks, no "
            "registers); use one such as vit_base_patch16_224, vit_tiny_patch16_224 or micro-vit."
        )
