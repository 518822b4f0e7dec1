"""ZS-CLIP: class names in a hand-written template, nothing trained, nothing sent. The control of text methods."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.fields import option
from fedprompt.methods._contract import State, Task
from fedprompt.methods._text import TextMethod


@dataclass(frozen=True)
class TemplateParams:
    template: str = option(
        "", "text with {} for the class name; empty means the template of the weights", paper="a photo of a {}."
    )


class ZsClip(TextMethod):
    """No state at all; it shows what the towers can do alone."""

    name = "zs-clip"
    title = "ZS-CLIP"
    order = 200
    paper = "Radford et al., Learning Transferable Visual Models From Natural Language Supervision (ICML 2021)"
    payload_formula = "0 each way"
    Params = TemplateParams

    def __init__(self, params: Any, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        self._classes = self.template_texts()

    def init_server(self, rng: torch.Generator) -> State:  # noqa: ARG002
        return {}

    def class_features(self, theta: State) -> Tensor:  # noqa: ARG002
        return self._classes[None]

    def cosine_logits(self, images: Tensor, classes: Tensor) -> Tensor:
        return super().cosine_logits(images, classes.expand(len(images), -1, -1))

    def rates(self) -> dict[str, float]:
        return {}
