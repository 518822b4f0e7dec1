"""FedPGP: each client adds a private low-rank matrix to the shared context.

A contrast keeps the shared context near hand-written prompts and apart from the client's own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.text import PLACEHOLDER
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods._text import CONTEXT_STD, TextMethod, TextParams


@dataclass(frozen=True)
class FedPGPParams(TextParams):
    rank: int = option(8, "rank b of what a client adds; 0 means nothing", low=0, paper="4 or 8")
    mu: float = option(1.0, "weight of the contrast", low=0, paper="1 or 0.5")
    tau: float = option(0.5, "temperature of the contrast", low=1e-6, paper="0.5")
    ref: str = option(
        "template",
        "prompt that the shared context is pulled to: the weights' template, or placeholders as in the public code",
        choices=("template", "placeholder"),
    )


class FedPGP(TextMethod):
    """Shared: one context. Private: the two factors of what is added to it."""

    name = "fedpgp"
    title = "FedPGP"
    order = 255
    paper = "Cui et al., Harmonizing Generalization and Personalization in Federated Prompt Learning (ICML 2024)"
    payload_formula = "m*d_t each way"
    Params = FedPGPParams

    def __init__(self, params: FedPGPParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        words = " ".join([PLACEHOLDER] * params.length)
        templates = [f"{words} {{}}."] if params.ref == "placeholder" else None
        self.reference = backbone.template_features(task.class_names, templates)  # of the fixed prompt, (C, d)

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        rows, rank, width = int(self.params.length), int(self.params.rank), self.backbone.text.width
        shapes = {"left": (rows, rank), "right": (rank, width)}
        return {name: CONTEXT_STD * torch.randn(*shape, generator=rng) for name, shape in shapes.items()}

    def context(self, theta: State) -> Tensor:
        return theta["context"] + theta["left"] @ theta["right"]

    def loss(self, theta: State, batch: Batch) -> Tensor:
        if not self.params.mu:
            return super().loss(theta, batch)
        own, shared = self.encode(torch.cat([self.context(theta), theta["context"]])).chunk(2)
        fit = cross_entropy(self.cosine_logits(self.image_features(batch), own), batch)
        mu: float = self.params.mu
        return fit + mu * contrast(shared, own, self.reference, self.params.tau)


def contrast(shared: Tensor, own: Tensor, reference: Tensor, tau: float) -> Tensor:
    """InfoNCE of the shared features with one positive, the reference, and one negative, the client's own, (K,)."""
    negative, positive = (shared * own).sum(-1), (shared * reference).sum(-1)
    return F.softplus((negative - positive) / tau).mean(-1)
