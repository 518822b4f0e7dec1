"""KgCoOp, federated: PromptFL whose class features are kept near those of a hand-written template."""

from dataclasses import dataclass

from torch import Tensor

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods._text import TextMethod, TextParams


@dataclass(frozen=True)
class KgCoOpParams(TextParams):
    guidance: float = option(
        8.0, "weight of the pull to the template; 0 means PromptFL", low=0, paper="8", grid=(1.0, 4.0, 8.0)
    )
    template: str = option("", "text with {} for the class name; empty means the template of the weights")


class KgCoOp(TextMethod):
    """Shared: one context. Private: nothing."""

    name = "kgcoop"
    title = "KgCoOp, averaged"
    order = 212
    paper = "Yao et al., Visual-Language Prompt Tuning with Knowledge-guided Context Optimization (CVPR 2023)"
    payload_formula = "m*d_t each way"
    Params = KgCoOpParams

    def __init__(self, params: KgCoOpParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.reference = self.template_texts()  # (C, d), a constant

    def loss(self, theta: State, batch: Batch) -> Tensor:
        texts = self.class_features(theta)
        fit = cross_entropy(self.cosine_logits(self.image_features(batch), texts), batch)
        distance = 1 - (texts * self.reference).sum(-1)
        guidance: float = self.params.guidance
        return fit + guidance * distance.mean(-1)
