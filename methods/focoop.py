"""FOCoOp: besides the contexts of the classes, clients learn prompts for things that are not classes.

Training makes the features of both robust against small worst-case shifts. The server can move prompts that turn out
to be class-like into the classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.text import Prompts
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods._mixins import Steps, StopGradients
from fedprompt.methods._outside_transport import exchange
from fedprompt.methods._outside_words import far_words
from fedprompt.methods._shifts import ASCENT, ascend, mean_length, soft_maximum
from fedprompt.methods._text import CONTEXT_STD, TextMethod, TextParams

TEMPERATURE = 0.1
PENALTY, LEAST_PENALTY, PENALTY_STEP = 10.0, 0.1, 0.005
CONFUSION = 0.5  # weight of unequal outside scores


@dataclass(frozen=True)
class FOCoOpParams(TextParams):
    outside: int = option(100, "prompts U for things that are not classes; fewer if less words fit", low=0, paper="100")
    share: float = option(0.2, "f, share of the shared context in a class's context", low=0, high=1, paper="0.2")
    robust: bool = option(True, "train against the worst small shifts of text features", paper="true; off in the code")
    radius: float = option(0.1, "length of a step of a shift", low=0, grid=(0.01, 0.1), paper="1 in the code")
    transport: bool = option(
        False, "the server moves class-like outside prompts into the classes", paper="true; off in the code"
    )


class FOCoOp(TextMethod, Steps, StopGradients):
    """Shared: one context per class, and those of outside prompts. Private: another context per class."""

    name = "focoop"
    title = "FOCoOp"
    order = 312
    paper = "FOCoOp: Enhancing Out-of-Distribution Robustness in Federated Prompt Learning for VLMs (ICML 2025)"
    payload_formula = "(C + U)*m*d_t each way"
    open_vocabulary: ClassVar[bool] = False
    Params = FOCoOpParams
    stop_gradients: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("context", "outside", "own"), "shifts are constants of the step"
    )

    @cached_property
    def outside_prompts(self) -> Prompts:
        """`X ... X word.` of words far from all classes."""
        words = far_words(self.backbone, self.task.class_names, int(self.params.outside), int(self.params.length))
        return self.backbone.class_prompts(words, self.params.length)

    # -- state: context (C, m, d_t), outside (U, m, d_t); own (C, m, d_t), steps (1) -----------------------------------

    def contexts(self, count: int, rng: torch.Generator) -> Tensor:
        """First values of ``count`` contexts; all are the words of `ctx_init` if there are any."""
        if self.params.ctx_init:
            return self.first_context(rng).repeat(count, 1, 1)
        return CONTEXT_STD * torch.randn(count, int(self.params.length), self.backbone.text.width, generator=rng)

    def init_server(self, rng: torch.Generator) -> State:
        state = {"context": self.contexts(self.task.num_classes, rng)}
        return {**state, "outside": self.contexts(len(self.outside_prompts), rng)} if self.params.outside else state

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        return {"own": self.contexts(self.task.num_classes, rng), "steps": torch.zeros(1)}

    def rates(self) -> dict[str, float]:
        return {name: rate for name, rate in super().rates().items() if name != "steps"}

    # -- the client ----------------------------------------------------------------------------------------------------

    def context(self, theta: State) -> Tensor:
        """Of every class, for the first block, (K, C, 1, m, d_t)."""
        return torch.lerp(theta["own"], theta["context"], self.params.share)[:, :, None]

    def outside_features(self, theta: State) -> Tensor:
        """(K, U, d)."""
        if "outside" not in theta:
            return theta["own"].new_zeros(len(theta["own"]), 0, self.backbone.dim)
        return self.backbone.text_features(theta["outside"][:, :, None], self.outside_prompts)

    def loss(self, theta: State, batch: Batch) -> Tensor:
        images, inside, outside = self.image_features(batch), self.class_features(theta), self.outside_features(theta)
        if not self.params.robust:
            return cross_entropy(self.all_logits(images, inside, outside), batch)
        penalty = self.penalty(theta)
        fixed = images.detach(), inside.detach(), outside.detach()
        inside_shift, outside_shift = self.worst_shifts(*fixed, batch, penalty)
        lengths = mean_length(inside_shift) + mean_length(outside_shift)
        each = self.errors(images, inside + inside_shift, outside + outside_shift, batch, CONFUSION)
        return soft_maximum(each - (penalty * lengths)[:, None], batch, TEMPERATURE * penalty)

    def worst_shifts(
        self, images: Tensor, inside: Tensor, outside: Tensor, batch: Batch, penalty: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of class features, which raise the error, and then of outside ones, which also make their scores unequal."""

        def of_classes(shift: Tensor) -> Tensor:
            error = batch.mean(self.errors(images, inside + shift, outside, batch, 0))
            return error - penalty * mean_length(shift)

        first = ascend(of_classes, torch.zeros_like(inside), self.params.radius)

        def of_outside(shift: Tensor) -> Tensor:
            error = batch.mean(self.errors(images, inside + first, outside + shift, batch, 1))
            return error - penalty * mean_length(shift)

        return first, ascend(of_outside, torch.zeros_like(outside), self.params.radius) if outside.shape[1] else outside

    def errors(self, images: Tensor, inside: Tensor, outside: Tensor, batch: Batch, confusion: float) -> Tensor:
        """Of each image, (K, B): cross-entropy over all columns, and how unequal the outside scores are."""
        scores = self.all_logits(images, inside, outside)
        entropy = F.cross_entropy(scores.flatten(0, 1), batch.labels.flatten(), reduction="none").view(
            batch.labels.shape
        )
        beyond = scores[..., inside.shape[1] :]
        return entropy + confusion * (beyond.logsumexp(-1) - beyond.mean(-1)) if beyond.shape[-1] else entropy

    def all_logits(self, images: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
        """(K, B, C + U)."""
        return self.cosine_logits(images, torch.cat([inside, outside], dim=1))

    def penalty(self, theta: State) -> Tensor:
        """Price of a shift's length, (K,): it falls while shifts are short, which they always are."""
        fall: float = PENALTY_STEP * (PENALTY - ASCENT * self.params.radius)
        price: Tensor = PENALTY - fall * theta["steps"][:, 0]
        return price.clamp(LEAST_PENALTY, PENALTY)

    def observe(self, theta: State, batch: Batch) -> State:
        return {"steps": theta["steps"] + batch.mask.any(1, keepdim=True)} if batch.stage == "train" else {}

    # -- the server ----------------------------------------------------------------------------------------------------

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        new = super().aggregate(server, uploads, weights, clients)
        if not self.params.transport or "outside" not in server:
            return new
        sent = uploads["outside"].flatten(0, 1).flatten(1)
        classes, outside = exchange(new["context"].flatten(1), sent, len(server["outside"]))
        return {**new, "context": classes.view_as(new["context"]), "outside": outside.view_as(server["outside"])}
