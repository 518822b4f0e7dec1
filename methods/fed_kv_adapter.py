"""Side networks that shift keys and values in every block: what FedPerfix leaves to do on a frozen backbone.

FedPerfix trains and averages the whole ViT and keeps these networks private. Here the ViT is frozen, so that something
else must be shared for there to be a federation: by default the networks' first map. This is not FedPerfix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedprompt.backbones.backbone import Change, block_rows
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import Stage, State
from fedprompt.methods._headed import HeadedMethod, HeadParams
from fedprompt.methods._mixins import UnseenClients

DOWN, UP = ("down.weight", "down.bias"), ("up.weight", "up.bias")
SHARED = {"none": (), "down": DOWN, "all": (*DOWN, *UP)}


@dataclass(frozen=True)
class SideParams(HeadParams):
    bottleneck: int = option(16, "width d_a of the side networks", low=1, paper="256")
    beta: float = option(1.5, "factor of what a side network adds; 0 means the frozen backbone", low=0, paper="1.5")
    share: str = option("down", "what the server averages of the side networks", choices=tuple(SHARED), paper="none")


class FedKVAdapter(HeadedMethod, UnseenClients):
    """In every block [dk, dv] = U tanh(D x) is added to keys and values; queries stay. Shared: D. Private: U."""

    name = "fed-kv-adapter"
    title = "FedKVAdapter"
    order = 93
    paper = "after Sun et al., FedPerfix: Towards Partial Model Personalization of Vision Transformers (ICCV 2023)"
    payload_formula = "L*(d*d_a + d_a) each way"
    needs = frozenset({"images", "prompts"})
    Params: ClassVar[type] = SideParams
    fixed_inputs = True

    def networks(self, rng: torch.Generator) -> State:
        width, inner, depth = self.backbone.width, self.params.bottleneck, self.backbone.depth
        return {
            "down.weight": (2 * torch.rand(depth, inner, width, generator=rng) - 1) / width**0.5,
            "down.bias": torch.zeros(depth, inner),
            "up.weight": torch.zeros(depth, 2 * width, inner),  # so that the first step starts at the backbone
            "up.bias": torch.zeros(depth, 2 * width),
        }

    def init_prompts(self, rng: torch.Generator) -> State:
        return {name: tensor for name, tensor in self.networks(rng).items() if name in SHARED[self.params.share]}

    def init_personal(self, rng: torch.Generator, client: int) -> State:
        personal = super().init_personal(rng, client)
        return {**personal, **{name: tensor for name, tensor in self.networks(rng).items() if name in self.private}}

    @property
    def private(self) -> list[str]:
        return [name for name in (*DOWN, *UP) if name not in SHARED[self.params.share]]

    def rates(self) -> dict[str, float]:
        return self.rates_of(*DOWN, *UP)

    def features(self, theta: State, batch: Batch) -> Tensor:
        def block_pass(index: int, block: Any, tokens: Tensor, rows: int) -> Tensor:
            def added(normed: Tensor) -> Change:
                lines = batch.pad(normed).flatten(1, 2)  # all tokens of a client meet its own network: (K, B*t, d)
                down, down_bias, up, up_bias = (theta[name][:, index] for name in (*DOWN, *UP))
                inner = torch.baddbmm(down_bias[:, None], lines, down.mT).tanh()
                shift = self.params.beta * torch.baddbmm(up_bias[:, None], inner, up.mT)
                key, value = batch.pack(shift.view(*batch.shape, normed.shape[1], -1)).chunk(2, dim=-1)
                return {"key": key, "value": value}

            return block_rows(block, tokens, rows, added)

        return batch.pad(self.backbone.cls(batch.images, block_pass=block_pass))

    def unseen_stages(self, epochs: int) -> Sequence[Stage]:
        """What is private starts from its first draw: the second map, with the client's own head if it has one."""
        head = [name for name in ("head.weight", "head.bias") if self.local_head]
        private, rates = [name for name in UP if name in self.private], self.rates()
        return [Stage("private", {name: rates[name] for name in (*private, *head)}, epochs)]
