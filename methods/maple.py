"""MaPLe, federated: deep text prompts, and linear maps that turn each into a visual prompt. All of it is averaged."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedprompt.methods._contract import State
from fedprompt.methods._deep_prompts import DeepPromptMethod, blocks_option
from fedprompt.methods._headed import revised
from fedprompt.methods._text import TextParams


@dataclass(frozen=True)
class MaPLeParams(TextParams):
    lr: float = revised(TextParams, "lr", default=0.0035, paper="0.0035", grid=(0.0035, 0.01, 0.05))
    length: int = revised(TextParams, "length", default=2, paper="2")
    blocks: int = blocks_option()


class MaPLe(DeepPromptMethod):
    """Shared: text prompts and their couplings to the image tower. Private: nothing."""

    name = "maple"
    title = "MaPLe, averaged"
    order = 216
    paper = "Khattak et al., MaPLe: Multi-modal Prompt Learning (CVPR 2023)"
    payload_formula = "J*(m*d_t + d_t*d_v + d_v) each way"
    Params = MaPLeParams

    def init_server(self, rng: torch.Generator) -> State:
        blocks, inputs, outputs = self.blocks, self.backbone.text.width, self.backbone.width

        def linear(*shape: int) -> Tensor:
            """torch's first values of a linear layer"""
            draw: Tensor = (2 * torch.rand(blocks, *shape, generator=rng) - 1) * inputs**-0.5
            return draw

        return {
            "text": self.first_texts(rng),
            "coupling.weight": linear(outputs, inputs),
            "coupling.bias": linear(outputs),
        }

    def visual(self, theta: State) -> Tensor:
        mapped: Tensor = theta["text"] @ theta["coupling.weight"].mT
        return mapped + theta["coupling.bias"][:, :, None]
