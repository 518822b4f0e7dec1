"""Text methods with prompts in both towers: own rows for each of the first blocks."""

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from fedprompt.backbones.backbone import deep
from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._text import CONTEXT_STD, TextMethod


def blocks_option() -> Any:
    return option(0, "first blocks of both towers with prompts; 0 means three quarters", low=0, paper="9 of 12")


class DeepPromptMethod(TextMethod):
    """``theta["text"]`` (K, J, m, d_t) replaces the context before each of the first J blocks of the text tower, and
    `visual` likewise inserts rows into the image tower. The rows of the last of them propagate."""

    needs = frozenset({"text", "images", "prompts"})

    def __init__(self, params: Any, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        shallower = min(len(backbone.text.blocks), backbone.depth)
        self.blocks = int(params.blocks) or max(1, round(shallower * 3 / 4))
        if self.blocks > shallower:
            raise UserError(
                f"{self.name}: blocks = {params.blocks}, but the shallower tower has {shallower}; use fewer."
            )

    def first_rows(self, width: int, count: int, rng: torch.Generator) -> Tensor:
        """``count`` rows for each prompted block, drawn from N(0, 0.02^2), (J, count, width)."""
        return CONTEXT_STD * torch.randn(self.blocks, count, width, generator=rng)

    def first_texts(self, rng: torch.Generator) -> Tensor:
        """The same for the text tower; the first block's may begin as words, (J, m, d_t)."""
        first = self.first_context(rng)[None]
        rest = self.first_rows(self.backbone.text.width, int(self.params.length), rng)[1:]
        return torch.cat([first, rest.to(first.device)])

    def context(self, theta: State) -> Tensor:
        return theta["text"]

    @abstractmethod
    def visual(self, theta: State) -> Tensor:
        """Rows of the image tower, (K, J, m_v, d_v); those of the first block enter before the tower's first norm."""

    def prompted_images(self, theta: State, batch: Batch) -> Tensor:
        """Normalised features of prompted images, (K, B, d)."""
        first, rest = torch.split(self.visual(theta), [1, self.blocks - 1], dim=1)
        rows = torch.cat([self.backbone.vit.norm_pre(first), rest], dim=1)
        return batch.pad(self.backbone.image_features(batch.images, deep(batch.rows(rows))))

    def logits(self, theta: State, batch: Batch) -> Tensor:
        return self.cosine_logits(self.prompted_images(theta, batch), self.current_classes(theta, batch))
