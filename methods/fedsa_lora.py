"""FedSA-LoRA: low-rank updates of the frozen queries and values; the server averages their first factor only.

No prompt at all: the control that tells what a prompt adds from what any few parameters add. The other factor, found to
be specific to a client, stays with it. Other divisions of the two factors are a parameter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedprompt.core.fields import option
from fedprompt.methods._contract import Stage, State
from fedprompt.methods._low_rank import LowRank, LowRankParams
from fedprompt.methods._mixins import UnseenClients

# What the server averages, and what trains: FedSA-LoRA, FedAvg of LoRA, FFA-LoRA (the first factor is never trained)
# and local LoRA.
SHARED = {"A": ("down",), "AB": ("down", "up"), "B": ("up",), "none": ()}


@dataclass(frozen=True)
class LoraParams(LowRankParams):
    share: str = option(
        "A", "what the server averages: A (FedSA-LoRA), AB (LoRA), B with A fixed (FFA-LoRA)", choices=tuple(SHARED)
    )


class FedSALora(LowRank, UnseenClients):
    """Shared: the factors that `share` names. Private: the others; unseen clients train them first."""

    name = "fedsa-lora"
    title = "FedSA-LoRA"
    order = 90
    paper = "Guo et al., Selective Aggregation for Low-Rank Adaptation in Federated Learning (ICLR 2025)"
    payload_formula = "2*L*r*d each way"
    Params: ClassVar[type] = LoraParams

    def init_prompts(self, rng: torch.Generator) -> State:
        return {name: tensor for name, tensor in self.factors(rng).items() if name in SHARED[self.params.share]}

    def init_personal(self, rng: torch.Generator, client: int) -> State:
        personal = super().init_personal(rng, client)
        private = {name: tensor for name, tensor in self.factors(rng).items() if name not in SHARED[self.params.share]}
        return {**personal, **private}

    def rates(self) -> dict[str, float]:
        return self.rates_of(*(("up",) if self.params.share == "B" else ("down", "up")))

    def unseen_stages(self, epochs: int) -> Sequence[Stage]:
        """What is private starts from its first draw: the second factor, with the client's own head if it has one."""
        head = [name for name in ("head.weight", "head.bias") if self.local_head]
        private = [name for name in ("down", "up") if name not in SHARED[self.params.share]]
        rates = self.rates()
        return [Stage("private", {name: rates[name] for name in (*private, *head) if name in rates}, epochs)]
