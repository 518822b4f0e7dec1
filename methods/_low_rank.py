"""Low-rank updates of the frozen queries and values: the client half of every LoRA method here."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedprompt.backbones.backbone import Change, block_rows
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._headed import HeadedMethod, HeadParams


@dataclass(frozen=True)
class LowRankParams(HeadParams):
    rank: int = option(8, "rank r of each update", low=1, paper="8")
    alpha: float = option(16.0, "updates are scaled by alpha / r", low=0, paper="16")


class LowRank(HeadedMethod):
    """W x becomes W x + (alpha / r) B A x, with A = ``down`` (L, 2, r, d) and B = ``up`` (L, 2, d, r) in theta.

    The 2 are queries and values; keys stay. Subclasses say which factor is shared and which is private.
    """

    needs = frozenset({"images", "prompts"})
    Params: ClassVar[type] = LowRankParams
    fixed_inputs = True

    def factors(self, rng: torch.Generator) -> State:
        rank, width, depth = self.params.rank, self.backbone.width, self.backbone.depth
        down = (2 * torch.rand(depth, 2, rank, width, generator=rng) - 1) / width**0.5  # a linear layer's usual draw
        return {"down": down, "up": torch.zeros(depth, 2, width, rank)}  # so that the first step starts at the backbone

    def init_prompts(self, rng: torch.Generator) -> State:
        """Both factors are shared unless a subclass says otherwise."""
        return self.factors(rng)

    def features(self, theta: State, batch: Batch) -> Tensor:
        down, up, scale = theta["down"], theta["up"], self.params.alpha / self.params.rank

        def block_pass(index: int, block: Any, tokens: Tensor, rows: int) -> Tensor:
            def added(normed: Tensor) -> Change:
                lines = batch.pad(normed).flatten(1, 2)  # all tokens of a client meet its own factors: (K, B*t, d)
                updates = (lines @ down[:, index, part].mT @ up[:, index, part].mT for part in (0, 1))
                shape = (*batch.shape, *normed.shape[1:])
                query, value = (batch.pack(scale * update.view(shape)) for update in updates)
                return {"query": query, "value": value}

            return block_rows(block, tokens, rows, added)

        return batch.pad(self.backbone.cls(batch.images, block_pass=block_pass))
