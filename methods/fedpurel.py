"""FedPuReL with prompts: a shared context whose steps never leave zero-shot CLIP, plus a private residual.

The frozen towers treat common and rare classes alike; training on long-tailed clients undoes that. So the shared
context loses the part of each step that moves predictions away from the zero-shot ones, and a client's own context does
not replace it: its logits are added.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import Stage, State, Task
from fedprompt.methods._headed import cross_entropy, revised
from fedprompt.methods._mixins import Stages, StopGradients
from fedprompt.methods._projection import guided_loss
from fedprompt.methods._text import TextMethod, TextParams

COLDEST, HOTTEST, HALVINGS = 0.05, 20.0, 20  # where temperatures are searched


@dataclass(frozen=True)
class FedPuReLParams(TextParams):
    lr: float = revised(TextParams, "lr", paper="0.001")
    length: int = revised(TextParams, "length", default=4, paper="4")
    strength: float = option(1.0, "lambda, how much of a conflict is removed; 0 means none", low=0, paper="1")
    alone: float = option(
        0.9, "alpha, weight of the residual's own fit; the rest is that of the sum", low=0, high=1, paper="0.9 or 0.99"
    )
    template: str = option("", "text with {} for the class name; empty means the template of the weights")


class FedPuReL(TextMethod, Stages, StopGradients):
    """Shared: one context. Private: another one, the residual."""

    name = "fedpurel"
    title = "FedPuReL, prompts"
    order = 258
    paper = (
        "Hou et al., Fine-Tuning Impairs the Balancedness of Foundation Models in Long-Tailed Personalized Federated "
        "Learning (CVPR 2026)"
    )
    payload_formula = "m*d_t each way"
    Params = FedPuReLParams
    stop_gradients: ClassVar[Mapping[str, str]] = {"context": "its gradient is projected"}

    def __init__(self, params: FedPuReLParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.reference = self.template_texts()  # (C, d), a constant

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        return {"residual": self.first_context(rng)}

    # -- the client: first its residual to the context it was sent, then that context -----

    def stages(self, epochs: int) -> Sequence[Stage]:
        lr: float = self.params.lr
        return [Stage("residual", {"residual": lr}, epochs), Stage("global", {"context": lr}, epochs)]

    def adaptation(self, epochs: int) -> Stage:
        return Stage("residual", {"residual": self.params.lr}, epochs)

    def loss(self, theta: State, batch: Batch) -> Tensor:
        if batch.stage == "global":
            return guided_loss(lambda moved: self.purified(moved, batch), theta, "context", self.params.strength)
        images, alone = self.image_features(batch), float(self.params.alone)
        shared = self.cosine_logits(images, batch.start["texts"])
        residual = self.cosine_logits(images, self.encode(theta["residual"]))
        together = cross_entropy(shared + residual, batch)
        return (1 - alone) * together + alone * cross_entropy(residual, batch)

    def begin_visit(self, theta: State, round_: int) -> State:  # noqa: ARG002
        return {"texts": self.encode(theta["context"])}  # what the residual is added to does not move

    def purified(self, theta: State, batch: Batch) -> tuple[Tensor, Tensor]:
        """Losses of the shared context, (K,) each: the cross-entropy, and the divergence from zero-shot predictions."""
        images = self.image_features(batch)
        logits = self.cosine_logits(images, self.encode(theta["context"]))
        zero_shot = self.cosine_logits(images, self.reference.expand(len(logits), -1, -1))
        own_heat, target_heat = equally_sharp(logits.detach(), zero_shot)
        target = (zero_shot / target_heat).log_softmax(-1)
        divergence = (target.exp() * (target - (logits / own_heat).log_softmax(-1))).sum(-1)
        return cross_entropy(logits, batch), batch.mean(divergence)

    # -- prediction: the sum -----

    def class_features(self, theta: State) -> Tensor:
        """Texts under both contexts, (K, 2, C, d)."""
        return torch.stack([self.encode(theta["context"]), self.encode(theta["residual"])], dim=1)

    def logits(self, theta: State, batch: Batch) -> Tensor:
        images = self.image_features(batch)
        shared, residual = self.current_classes(theta, batch).unbind(1)
        return self.cosine_logits(images, shared) + self.cosine_logits(images, residual)


def equally_sharp(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Temperatures (..., 1) at which the predictions of both logits (..., C) have the mean of their entropies."""
    logits = torch.stack([first, second])
    wanted = entropy(logits).mean(0)
    low, high = (torch.full_like(logits[..., :1], bound) for bound in (COLDEST, HOTTEST))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        too_sharp = entropy(logits / middle) < wanted
        low, high = torch.where(too_sharp, middle, low), torch.where(too_sharp, high, middle)
    own, other = ((low + high) / 2).unbind(0)
    return own, other


def entropy(logits: Tensor) -> Tensor:
    """Of the softmax over the last axis, (..., 1)."""
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1, keepdim=True)
