"""PromptFolio: classes are a fixed mixture of the text features of a shared and of a private context."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.fields import option
from fedprompt.methods._contract import State
from fedprompt.methods._text import TextMethod, TextParams


@dataclass(frozen=True)
class PromptFolioParams(TextParams):
    theta: float = option(0.4, "weight of the private context; 0 means PromptFL, 1 CoOp", low=0, high=1, paper="0.4")
    mix_norm: bool = option(False, "normalise the mixture again", paper="false")


class PromptFolio(TextMethod):
    """Shared: one context. Private: another. Their text features are mixed."""

    name = "promptfolio"
    title = "PromptFolio"
    order = 280
    paper = (
        "Pan et al., Federated Learning from Vision-Language Foundation Models: Theoretical Analysis ... (NeurIPS 2024)"
    )
    payload_formula = "m*d_t each way"
    Params = PromptFolioParams

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        return {"own": self.first_context(rng)}

    def class_features(self, theta: State) -> Tensor:
        shared, private = self.encode(torch.cat([theta["context"], theta["own"]])).chunk(2)
        mixture = torch.lerp(shared, private, self.params.theta)
        return F.normalize(mixture, dim=-1) if self.params.mix_norm else mixture
