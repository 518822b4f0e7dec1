"""Prompt+FedPer: the first tokens of the context are shared, the others stay with the client."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._contract import State, Task
from fedprompt.methods._text import TextMethod, TextParams


@dataclass(frozen=True)
class FedPerParams(TextParams):
    shared: int | None = option(None, "context tokens that are shared; none means half", low=0, paper="unpublished")


class PromptFedPer(TextMethod):
    """Shared: the first tokens of the context. Private: the rest."""

    name = "prompt-fedper"
    title = "Prompt+FedPer"
    order = 220
    paper = (
        "Arivazhagan et al., Federated Learning with Personalization Layers (2019), on prompts as in pFedPrompt (2023)"
    )
    payload_formula = "m_s*d_t each way"
    Params = FedPerParams

    def __init__(self, params: Any, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.shared = params.length // 2 if params.shared is None else params.shared
        if self.shared > params.length:
            raise UserError(f"{self.name}: shared = {self.shared}, but the context has {params.length} tokens.")

    def init_server(self, rng: torch.Generator) -> State:
        return {"shared": self.first_context(rng)[: self.shared]}

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        return {"private": self.first_context(rng)[self.shared :]}

    def context(self, theta: State) -> Tensor:
        return torch.cat([theta["shared"], theta["private"]], dim=1)
