"""The frozen text tower: prompts with a learnable context, and the features of all classes in one pass.

Attention is causal and a prompt is read at its end-of-text token. Two things follow, both exact: what comes after the
last end of text is never computed, and the tokens before the class name (start of text and context) are computed
once per client instead of once per client and class.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.errors import UserError

if TYPE_CHECKING:  # importing timm takes seconds, and `methods` needs none
    from timm.models.vision_transformer import Block

Adapter = Callable[[int, Tensor], Tensor]  # (block index, its normed inputs) to what is added to its outputs
Added = Callable[[Tensor], Tensor] | None
PLACEHOLDER = "X"  # one token in every vocabulary; the context takes its place


class Tokenizer(Protocol):
    """From text to token ids; ``end`` is the id that closes every text, at which a prompt is read."""

    end: int
    context_length: int

    def __call__(self, text: str) -> list[int]:
        """Ids of one text with start and end, neither padded nor cut."""


@dataclass(frozen=True)
class Prompts:
    """One tokenised prompt per class (or per caption), cut after the longest.

    With ``length`` above zero the tokens at positions 1 to ``length`` are placeholders, which a context replaces.
    """

    ids: Tensor  # (C, L) int64, zeros after the end
    ends: Tensor  # (C,) int64: where the end-of-text token is
    length: int  # context tokens, at positions 1..length

    def __len__(self) -> int:
        return len(self.ids)


def spoken_name(name: str) -> str:
    """A class name as text: `wine_glass` is "wine glass", and a single character goes by its Unicode name."""
    if len(name) == 1:
        return unicodedata.name(name, name).lower()
    return name.replace("_", " ")


class TextTower(nn.Module):
    """A causal pre-norm transformer over token embeddings, read at the end-of-text token and projected.

    ``width`` is that of its tokens (and contexts), ``dim`` that of the features.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        embedding: nn.Embedding,
        positions: nn.Parameter,
        blocks: Sequence["Block"],
        norm: nn.Module,
        projection: nn.Linear,
    ) -> None:
        super().__init__()
        self.tokenizer, self.embedding, self.positions = tokenizer, embedding, positions
        self.blocks, self.norm, self.projection = nn.ModuleList(blocks), norm, projection
        self.width, self.dim = int(embedding.embedding_dim), int(projection.out_features)
        self.context_length = len(positions)

    def class_prompts(self, class_names: Sequence[str], length: int) -> Prompts:
        """`X X ... X name.` for every class, ``length`` placeholders each."""
        if length < 1:
            raise UserError(f"a context of {length} tokens is too short; give at least 1.")
        texts = [f"{' '.join([PLACEHOLDER] * length)} {spoken_name(name)}." for name in class_names]
        placeholders = self.tokenizer(" ".join([PLACEHOLDER] * length))[1:-1]
        if len(placeholders) != length or len(set(placeholders)) > 1:
            raise UserError(f"{PLACEHOLDER!r} is not one token for this tokenizer, so a context has no fixed place.")
        return self.tokenise(texts, length)

    def tokenise(self, texts: Sequence[str], length: int = 0) -> Prompts:
        """Texts as they are; their first ``length`` tokens are places for a context."""
        if not texts:
            raise UserError("no texts to tokenise; a data set needs at least one class name.")
        tokens = [self.tokenizer(text) for text in texts]
        longest = max(range(len(tokens)), key=lambda i: len(tokens[i]))
        if len(tokens[longest]) > self.context_length:
            raise UserError(
                f"{texts[longest]!r} has {len(tokens[longest])} tokens, but the text tower takes {self.context_length};"
                " use fewer context tokens or shorter class names."
            )
        ends = [ids.index(self.tokenizer.end) for ids in tokens]
        padded = [ids + [0] * (len(tokens[longest]) - len(ids)) for ids in tokens]
        device = self.positions.device
        return Prompts(torch.tensor(padded, device=device), torch.tensor(ends, device=device), length)

    def context_of(self, words: str) -> Tensor:
        """The embeddings of hand-written words, (tokens, d_t): a context that starts as that text."""
        prompts = self.tokenise([words])
        return self.embedding.weight[prompts.ids[0, 1:-1]].detach().clone()

    def forward(self, prompts: Prompts, context: Tensor | None = None, adapter: Adapter | None = None) -> Tensor:
        """L2-normalised features of all prompts under each client's context: (K, m, d_t) to (K, C, d).

        With (K, C, L, m, d_t) every prompt has its own contexts of L blocks, and nothing is shared between prompts.

        Args:
            prompts: what `class_prompts` or `tokenise` made.
            context: one per stacked client, in place of the prompts' placeholders. None for prompts without any; K is
                then 1. With (K, J, m, d_t) each of the first J blocks gets a context of its own; what a block makes
                of one is discarded before the next, and the last one propagates.
            adapter: adds to the outputs of every block.
        """
        if context is None:
            context = self.positions.new_empty(1, 0, self.width)
        if context.shape[-2:] != (prompts.length, self.width):
            raise ValueError(f"context {tuple(context.shape)} for {prompts.length} tokens of width {self.width}")
        clients, ahead = len(context), 1 + prompts.length
        if context.dim() == 5:
            context = context.flatten(0, 1)  # as if every prompt were a client with a single prompt
        context, *deeper = [context] if context.dim() == 3 else context.unbind(1)
        if len(deeper) >= len(self.blocks):
            raise ValueError(f"contexts for {1 + len(deeper)} blocks, but the text tower has {len(self.blocks)}")
        embedded = self.embedding(prompts.ids) + self.positions[: prompts.ids.shape[1]]
        start = embedded[:1, :1].expand(len(context), -1, -1)  # the same for all prompts
        prefix = torch.cat([start, context + self.positions[1:ahead]], dim=1)
        names = (
            embedded[:, ahead:].expand(clients, -1, -1, -1).reshape(len(context), -1, *embedded[:, ahead:].shape[1:])
        )
        earlier = _visible(names.shape[2], ahead, names.device)
        added = [None if adapter is None else partial(adapter, index) for index in range(len(self.blocks))]
        renewed = iter(deeper)  # before every block but the first, as long as there are any
        for block, more in zip(self.blocks[:-1], added, strict=False):
            prefix, names = _step(block, prefix, names, earlier, more)
            if (rows := next(renewed, None)) is not None:
                prefix = torch.cat([prefix[:, :1], rows], dim=1)
        read = self._read(prefix, names, prompts.ends - ahead, added[-1])
        return F.normalize(self.projection(self.norm(read.view(clients, len(prompts), -1))), dim=-1)

    def _read(self, prefix: Tensor, names: Tensor, ends: Tensor, more: Added) -> Tensor:
        """The last block for the end-of-text tokens only: its other outputs would be thrown away."""
        block: Any = self.blocks[-1]
        classes = torch.arange(len(ends), device=names.device)
        of_clients = names.reshape(-1, len(ends), *names.shape[2:])  # whether prompts share a context or not
        last = of_clients[:, classes, ends].view(*names.shape[:2], 1, -1)
        query, _, _ = _heads(block, last)
        keys, values = _joined(_heads(block, prefix)[1:], _heads(block, names)[1:])
        places = torch.arange(keys.shape[-2], device=names.device)
        visible = places <= (ends + prefix.shape[1])[:, None]  # (C, P + S)
        attended = _attend(
            query, keys, values, visible.expand(len(of_clients), *visible.shape).flatten(0, 1)[:, None, None]
        )
        return _residual(block, last, attended, more)[:, :, 0]


def _visible(length: int, ahead: int, device: torch.device) -> Tensor:
    """Which keys each token of a name sees: the whole prefix, the earlier tokens of its own name and itself."""
    return torch.ones(length, ahead + length, dtype=torch.bool, device=device).tril(ahead)


def _step(block: Any, prefix: Tensor, names: Tensor, earlier: Tensor, more: Added) -> tuple[Tensor, Tensor]:
    """One block over the prefixes (K, P, d) and the names (K, C, S, d), which also see their client's prefix."""
    query, key, value = _heads(block, prefix)
    before = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    name_query, *name_pairs = _heads(block, names)
    attended = _attend(name_query, *_joined((key, value), name_pairs), earlier)
    return _residual(block, prefix, before, more), _residual(block, names, attended, more)


def _heads(block: Any, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of each head, (..., heads, tokens, e)."""
    attention = block.attn
    mixed = attention.qkv(block.norm1(tokens)).unflatten(-1, (3, attention.num_heads, attention.head_dim))
    query, key, value = (x.transpose(-3, -2) for x in mixed.unbind(-3))
    return attention.q_norm(query), attention.k_norm(key), value


def _joined(prefix: Sequence[Tensor], names: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Keys and values of the names behind those of their client's prefix, (K, C, heads, P + S, e)."""
    classes = names[0].shape[1]
    key, value = (
        torch.cat([before[:, None].expand(-1, classes, -1, -1, -1), own], dim=-2)
        for before, own in zip(prefix, names, strict=True)
    )
    return key, value


def _attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention with (K, C) as one batch axis: the fast kernels take no more than one."""
    query_rows, key_rows, value_rows = (x.flatten(0, 1) for x in (query, keys, values))
    attended = F.scaled_dot_product_attention(query_rows, key_rows, value_rows, attn_mask=mask)
    return attended.view(*query.shape[:2], *attended.shape[1:])


def _residual(block: Any, tokens: Tensor, attended: Tensor, more: Added) -> Tensor:
    """The rest of a pre-norm block once attention is done, and what is added to it."""
    mixed = block.attn.proj(block.attn.norm(attended.transpose(-3, -2).flatten(-2)))
    middle = tokens + block.ls1(mixed)
    output: Tensor = middle + block.ls2(block.mlp(block.norm2(middle)))
    return output if more is None else output + more(block.norm1(tokens))
