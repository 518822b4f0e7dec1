"""Prompt+FedProx: PromptFL with a pull towards the context that the server sent."""

from dataclasses import dataclass

from torch import Tensor

from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._text import TextParams
from fedprompt.methods.promptfl import PromptFL


@dataclass(frozen=True)
class FedProxParams(TextParams):
    mu: float = option(
        0.5, "pull towards the received context; 0 means PromptFL", low=0, grid=(0.1, 0.5, 1.0), paper="0.5"
    )


class PromptFedProx(PromptFL):
    """PromptFL with a proximal term in the loss."""

    name = "prompt-fedprox"
    title = "Prompt+FedProx"
    order = 225
    paper = "Li et al., Federated Optimization in Heterogeneous Networks (MLSys 2020), on prompts"
    Params = FedProxParams

    def loss(self, theta: State, batch: Batch) -> Tensor:
        drift = (theta["context"] - batch.start["context"]).flatten(1)
        penalty: Tensor = self.params.mu / 2 * drift.square().sum(1)
        return super().loss(theta, batch) + penalty
