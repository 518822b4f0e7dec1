"""FedSA-LoRA: low-rank updates of the frozen queries and values; the server averages their first factor only.

No prompt at all: the control that tells what a prompt adds from what any few parameters add. The other factor, found to
be specific to a client, stays with it. Other divisions of the two factors are a parameter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedprompt.backbones.backbone import block_rows
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import Stage, State
from fedprompt.methods._headed import HeadedMethod, HeadParams
from fedprompt.methods._mixins import UnseenClients

# What the server averages, and what trains: FedSA-LoRA, FedAvg of LoRA, FFA-LoRA (the first factor is never trained)
# and local LoRA.
SHARED = {"A": ("down",), "AB": ("down", "up"), "B": ("up",), "none": ()}


@dataclass(frozen=True)
class LoraParams(HeadParams):
    rank: int = option(8, "rank r of each update", low=1, paper="8")
    alpha: float = option(16.0, "updates are scaled by alpha / r", low=0, paper="16")
    share: str = option(
        "A", "what the server averages: A (FedSA-LoRA), AB (LoRA), B with A fixed (FFA-LoRA)", choices=tuple(SHARED)
    )


class FedSALora(HeadedMethod, UnseenClients):
    """Shared: the factors that `share` names. Private: the others; unseen clients train them first."""

    name = "fedsa-lora"
    title = "FedSA-LoRA"
    order = 90
    paper = "Guo et al., Selective Aggregation for Low-Rank Adaptation in Federated Learning (ICLR 2025)"
    payload_formula = "2*L*r*d each way"
    needs = frozenset({"images", "prompts"})
    Params: ClassVar[type] = LoraParams
    fixed_inputs = True

    # -- state: down (L, 2, r, d) and up (L, 2, d, r); the 2 are queries and values ---------------------------------

    def factors(self, rng: torch.Generator) -> State:
        rank, width, depth = self.params.rank, self.backbone.width, self.backbone.depth
        down = (2 * torch.rand(depth, 2, rank, width, generator=rng) - 1) / width**0.5  # a linear layer's usual draw
        return {"down": down, "up": torch.zeros(depth, 2, width, rank)}  # so that the first step starts at the backbone

    def init_prompts(self, rng: torch.Generator) -> State:
        return {name: tensor for name, tensor in self.factors(rng).items() if name in SHARED[self.params.share]}

    def init_personal(self, rng: torch.Generator, client: int) -> State:
        personal = super().init_personal(rng, client)
        private = {name: tensor for name, tensor in self.factors(rng).items() if name not in SHARED[self.params.share]}
        return {**personal, **private}

    def rates(self) -> dict[str, float]:
        return self.rates_of(*(("up",) if self.params.share == "B" else ("down", "up")))

    # -- the client ---------------------------------------------------------------------------------------------------

    def features(self, theta: State, batch: Batch) -> Tensor:
        down, up, scale = theta["down"], theta["up"], self.params.alpha / self.params.rank

        def block_pass(index: int, block: Any, tokens: Tensor, rows: int) -> Tensor:
            def added(normed: Tensor) -> tuple[Tensor, Tensor]:
                lines = batch.pad(normed).flatten(1, 2)  # all tokens of a client meet its own factors: (K, B*t, d)
                updates = (lines @ down[:, index, part].mT @ up[:, index, part].mT for part in (0, 1))
                shape = (*batch.shape, *normed.shape[1:])
                query, value = (batch.pack(scale * update.view(shape)) for update in updates)
                return query, value

            return block_rows(block, tokens, rows, added)

        return batch.pad(self.backbone.cls(batch.images, block_pass=block_pass))

    def unseen_stages(self, epochs: int) -> Sequence[Stage]:
        """What is private starts from its first draw: the second factor, with the client's own head if it has one."""
        head = [name for name in ("head.weight", "head.bias") if self.local_head]
        private = [name for name in ("down", "up") if name not in SHARED[self.params.share]]
        rates = self.rates()
        return [Stage("private", {name: rates[name] for name in (*private, *head) if name in rates}, epochs)]
