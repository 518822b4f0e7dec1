"""CoOp: every client learns its own context; nothing is sent.

By default a client trains as long as in a federated method. The paper gives it 25 epochs in all: ``budget=25``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedprompt.core.fields import option
from fedprompt.methods._contract import Stage, State
from fedprompt.methods._mixins import Stages, Steps
from fedprompt.methods._text import TextMethod, TextParams


@dataclass(frozen=True)
class CoOpParams(TextParams):
    budget: int = option(
        0,
        "a client stops learning after the visit in which it reaches so many epochs; 0 means never",
        paper="25",
        low=0,
    )


class CoOp(TextMethod, Stages, Steps):
    """Shared: nothing. Private: the context, and how long it has trained."""

    name = "coop"
    title = "CoOp, local"
    order = 205
    paper = "Zhou et al., Learning to Prompt for Vision-Language Models (IJCV 2022)"
    payload_formula = "0 each way"
    Params = CoOpParams

    def init_server(self, rng: torch.Generator) -> State:  # noqa: ARG002
        return {}

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        epochs = {"epochs": torch.zeros(1)} if self.params.budget else {}
        return {"context": self.first_context(rng), **epochs}

    def rates(self) -> dict[str, float]:
        return {"context": self.params.lr}

    def project_step(self, name: str, step: Tensor, start: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        return step * (start["epochs"] < self.params.budget)[..., None] if self.params.budget else step

    def end_stage(self, stage: Stage, theta: State) -> State:
        counted = self.params.budget and stage.name == "train"
        return {"epochs": theta["epochs"] + stage.epochs} if counted else {}
