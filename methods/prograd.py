"""ProGrad, federated: PromptFL without the part of each step that contradicts zero-shot CLIP."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods._mixins import StopGradients
from fedprompt.methods._projection import guided_loss
from fedprompt.methods._text import TextMethod, TextParams


@dataclass(frozen=True)
class ProGradParams(TextParams):
    strength: float = option(
        1.0, "lambda, how much of a conflict is removed; 0 means PromptFL", low=0, paper="1", grid=(0.5, 0.8, 1.0)
    )
    temperature: float = option(1.0, "temperature of the zero-shot predictions to agree with", low=1e-6, paper="1")
    template: str = option("", "text with {} for the class name; empty means the template of the weights")


class ProGrad(TextMethod, StopGradients):
    """Shared: one context. Private: nothing."""

    name = "prograd"
    title = "ProGrad, averaged"
    order = 214
    paper = "Zhu et al., Prompt-aligned Gradient for Prompt Tuning (ICCV 2023)"
    payload_formula = "m*d_t each way"
    Params = ProGradParams
    stop_gradients: ClassVar[Mapping[str, str]] = {"context": "its gradient is projected"}

    def __init__(self, params: ProGradParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.reference = self.template_texts()  # (C, d), a constant

    def loss(self, theta: State, batch: Batch) -> Tensor:
        def losses(theta: State) -> tuple[Tensor, Tensor]:
            logits = self.logits(theta, batch)
            return cross_entropy(logits, batch), self.disagreement(logits, batch)

        return guided_loss(losses, theta, "context", self.params.strength)

    def disagreement(self, logits: Tensor, batch: Batch) -> Tensor:
        """Cross-entropy of ``logits`` (K, B, C) against the zero-shot predictions, times T^2, (K,).

        It differs from their divergence by a constant.
        """
        temperature: float = self.params.temperature
        zero_shot = self.cosine_logits(self.image_features(batch), self.reference.expand(len(logits), -1, -1))
        target = (zero_shot / temperature).softmax(-1)
        return -(temperature**2) * batch.mean((target * (logits / temperature).log_softmax(-1)).sum(-1))
