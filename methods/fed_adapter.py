"""Federated adapters: a small bottleneck next to every frozen block, averaged. A control without prompts."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.backbone import block_rows
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._headed import HeadedMethod, HeadParams

WEIGHTS = ("down.weight", "down.bias", "up.weight", "up.bias")


@dataclass(frozen=True)
class AdapterParams(HeadParams):
    bottleneck: int = option(64, "width d_a of the adapters", low=1)
    scale: float = option(0.1, "factor of what an adapter adds", low=0)
    share: str = option("all", "whether the server averages the adapters", choices=("all", "none"))


class FedAdapter(HeadedMethod):
    """Shared (or private, with `share=none`): two affine maps per block."""

    name = "fed-adapter"
    title = "FedAdapter"
    order = 92
    paper = "Houlsby et al., Parameter-Efficient Transfer Learning for NLP (ICML 2019), federated by this suite"
    payload_formula = "L*(2*d*d_a + d_a + d) each way"
    needs = frozenset({"images", "prompts"})
    Params: ClassVar[type] = AdapterParams
    fixed_inputs = True

    def adapters(self, rng: torch.Generator) -> State:
        width, inner, depth = self.backbone.width, self.params.bottleneck, self.backbone.depth
        shapes = ((depth, inner, width), (depth, inner), (depth, width, inner), (depth, width))
        state = {name: torch.zeros(shape) for name, shape in zip(WEIGHTS, shapes, strict=True)}
        return {**state, "down.weight": (2 * torch.rand(*shapes[0], generator=rng) - 1) / width**0.5}

    def init_prompts(self, rng: torch.Generator) -> State:
        return self.adapters(rng) if self.params.share == "all" else {}

    def init_personal(self, rng: torch.Generator, client: int) -> State:
        return {**super().init_personal(rng, client), **({} if self.params.share == "all" else self.adapters(rng))}

    def rates(self) -> dict[str, float]:
        return self.rates_of(*WEIGHTS)

    def features(self, theta: State, batch: Batch) -> Tensor:
        def block_pass(index: int, block: Any, tokens: Tensor, rows: int) -> Tensor:
            lines = batch.pad(block.norm1(tokens[:, :rows])).flatten(1, 2)  # (K, B*rows, d)
            down, down_bias, up, up_bias = (theta[name][:, index] for name in WEIGHTS)
            inner = F.gelu(torch.baddbmm(down_bias[:, None], lines, down.mT))
            added = torch.baddbmm(up_bias[:, None], inner, up.mT).view(*batch.shape, rows, -1)
            scale: float = self.params.scale
            return block_rows(block, tokens, rows) + scale * batch.pack(added)

        return batch.pad(self.backbone.cls(batch.images, block_pass=block_pass))
