"""The frozen vision transformer. Prompts are inputs: they edit the tokens that enter its blocks.

An *edit* maps (block index, tokens entering that block) to the tokens the block really gets. Row 0 is CLS, prompts
come directly after it and carry no positional embedding. Shallow, deep and inserted prompts are edits; so is
whatever a method invents, because it sees the tokens of every block.

A *block pass* takes the place of the blocks themselves: it maps (block index, block, tokens, rows) to the block's first
output rows. Low-rank updates and adapters, which act inside a block or beside it, are block passes around `block_rows`.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fedprompt.harness.core.errors import UserError

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

Edit = Callable[[int, Tensor], Tensor]
BlockPass = Callable[[int, Any, Tensor, int], Tensor]


def insert(tokens: Tensor, prompt: Tensor) -> Tensor:
    """Prompt rows (n, T, d) between CLS and the rest."""
    return torch.cat([tokens[:, :1], prompt, tokens[:, 1:]], dim=1)


def shallow(prompt: Tensor, at: int = 0) -> Edit:
    """Insert (n, T, d) once, before block ``at``; the rows then propagate like any other token."""
    return lambda block, tokens: insert(tokens, prompt) if block == at else tokens


def deep(prompts: Tensor, start: int = 0, after_depth: Literal["propagate", "drop"] = "propagate") -> Edit:
    """Give each block from ``start`` on its own rows from (n, depth, T, d); what earlier rows became is discarded.

    After the last prompted block its rows propagate or are dropped.
    """
    depth, length = prompts.shape[1:3]

    def edit(block: int, tokens: Tensor) -> Tensor:
        layer = block - start
        if layer < 0 or layer > depth:
            return tokens
        unprompted = tokens if layer == 0 else torch.cat([tokens[:, :1], tokens[:, 1 + length :]], dim=1)
        if layer < depth:
            return insert(unprompted, prompts[:, layer])
        return tokens if after_depth == "propagate" else unprompted

    return edit


class FrozenViT(nn.Module):
    """A plain timm ViT (class token, absolute positions, pre-norm blocks) that never trains."""

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
        """The mean and deviation of channels, for pixels from 0 to 255."""
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, 255 * torch.tensor(values).view(1, 3, 1, 1), persistent=False)

    def pixels(self, images: Tensor) -> Tensor:
        """uint8 images as the weights expect them."""
        return (images.to(self.device, self.mean.dtype) - self.mean) / self.std

    def train(self, mode: bool = True) -> "FrozenViT":  # noqa: ARG002
        """Stays in evaluation mode: dropout of a frozen backbone is off even while prompts train."""
        return super().train(False)

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def embed(self, images: Tensor) -> Tensor:
        """uint8 images (n, 3, h, w) to the tokens entering block 0; such tokens, (n, 1+M, d), stay as they are."""
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
        """Normalised output rows 0..rows-1 after block ``stop`` (all blocks by default), (n, rows, d).

        The last block is computed for those rows only: the other outputs would be thrown away.
        """
        tokens = self.embed(images)
        last = (self.depth if stop is None else stop) - 1
        for index in range(last + 1):
            if edit is not None:
                tokens = edit(index, tokens)
            block = self.vit.blocks[index]
            if block_pass is not None:
                tokens = block_pass(index, block, tokens, rows if index == last else tokens.shape[1])
            else:
                tokens = block_rows(block, tokens, rows) if index == last else block(tokens)
        normed: Tensor = self.vit.norm(tokens[:, :rows])
        return normed

    def cls(
        self,
        images: Tensor,
        edit: Edit | None = None,
        stop: int | None = None,
        block_pass: BlockPass | None = None,
    ) -> Tensor:
        """The image feature of every method: LNf of the CLS row, (n, d)."""
        return self.forward(images, edit, stop=stop, block_pass=block_pass)[:, 0]

    @torch.no_grad()
    def layer_inputs(self, images: Tensor, depth: int | None = None) -> Tensor:
        """Tokens entering the first ``depth`` blocks of a pass without prompts, (n, depth, 1+M, d)."""
        inputs = [self.embed(images)]
        for block in self.vit.blocks[: (depth or self.depth) - 1]:
            inputs.append(block(inputs[-1]))
        return torch.stack(inputs, dim=1)


def block_rows(
    block: Any, tokens: Tensor, rows: int, added: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
) -> Tensor:
    """A pre-norm block's output for its first ``rows`` rows: only they are queries, every token is key and value.

    ``added`` makes of the normed tokens what is added to queries and values, (n, tokens, d) each.
    """
    attention, width = block.attn, block.attn.attn_dim
    normed = block.norm1(tokens)
    weight, bias = attention.qkv.weight, attention.qkv.bias
    query = F.linear(normed[:, :rows], weight[:width], None if bias is None else bias[:width])
    key, value = F.linear(normed, weight[width:], None if bias is None else bias[width:]).chunk(2, dim=-1)

    if added is not None:
        to_query, to_value = added(normed)
        query, value = query + to_query[:, :rows], value + to_value

    def heads(x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], attention.num_heads, attention.head_dim).transpose(1, 2)

    attended = F.scaled_dot_product_attention(
        attention.q_norm(heads(query)), attention.k_norm(heads(key)), heads(value)
    )
    mixed = attention.proj(attention.norm(attended.transpose(1, 2).flatten(2)))
    attended_rows = tokens[:, :rows] + block.ls1(mixed)
    output: Tensor = attended_rows + block.ls2(block.mlp(block.norm2(attended_rows)))
    return output


def _require_plain(vit: nn.Module, name: str) -> None:
    """Prompt rows sit after row 0 and blocks are taken apart, so the model must be what it seems."""
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
