"""FedVPT: one shallow prompt, averaged by the server."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedprompt.backbones.backbone import shallow
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._headed import HeadedMethod, PromptParams, revised


@dataclass(frozen=True)
class SharedParams(PromptParams):
    lr: float = revised(PromptParams, "lr", paper="0.01")


class FedVPT(HeadedMethod):
    """Shared: a prompt (T, d) that enters with the first block; the base of most prompt methods here."""

    name = "fedvpt"
    title = "FedVPT"
    order = 20
    paper = "Jia et al., Visual Prompt Tuning (ECCV 2022), federated as in pFedPG (ICCV 2023)"
    payload_formula = "T*d each way"
    needs = frozenset({"images", "prompts"})
    Params: ClassVar[type] = SharedParams
    fixed_inputs = True

    def init_prompts(self, rng: torch.Generator) -> State:
        return {"prompt": self.draw_prompts((self.params.length, self.backbone.width), rng, [0])}

    def features(self, theta: State, batch: Batch) -> Tensor:
        return batch.pad(self.backbone.cls(batch.images, shallow(batch.rows(theta["prompt"]))))
