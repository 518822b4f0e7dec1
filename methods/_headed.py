"""What prompt methods have in common: a linear head, local or global, and how prompts begin."""

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._batch import HEAD_INPUTS, Batch
from fedprompt.methods._contract import Method, State

HEAD_INITS = ("torch_default", "kaiming_fan_out", "zeros")
PROMPT_INITS = ("vpt", "small", "tokens")
SMALL = 0.1  # of VPT's range


def revised(params: type, name: str, **changes: Any) -> Any:
    """The option ``name`` of the dataclass ``params`` for a subclass, with another default, range or note."""
    inherited: Field[Any] = params.__dataclass_fields__[name]  # type: ignore[attr-defined]
    default = changes.pop("default", inherited.default)
    return field(default=default, metadata={**inherited.metadata, **changes})


@dataclass(frozen=True)
class HeadOnlyParams:
    """Options of a method that trains nothing but a head."""

    lr: float = option(0.01, "learning rate of everything that trains", low=0, grid=(0.01, 0.05, 0.1))
    head_init: str = option("torch_default", "first draw of the head, the same for every client", choices=HEAD_INITS)


@dataclass(frozen=True)
class HeadParams(HeadOnlyParams):
    """Options of a method with a head and something else that trains."""

    head_lr: float | None = option(None, "learning rate of the head; none means lr", low=0, paper="none")


@dataclass(frozen=True)
class PromptParams(HeadParams):
    """Options of a method with prompts and a head."""

    length: int = option(10, "prompt tokens (of each prompted block)", low=0, paper="10")
    init: str = option(
        "vpt",
        "first values of prompts: VPT's draw, a tenth of it, or that around the mean of the block's own tokens",
        choices=PROMPT_INITS,
        paper="vpt",
    )


def head_init(rule: str, classes: int, width: int, rng: torch.Generator) -> State:
    """A linear head's first draw by one of the three conventions in use."""
    bound = 1 / math.sqrt(width)  # torch's default for a linear layer: U(-1/sqrt(d), 1/sqrt(d)) for both
    weight = (2 * torch.rand(classes, width, generator=rng) - 1) * bound
    bias = (2 * torch.rand(classes, generator=rng) - 1) * bound
    if rule == "kaiming_fan_out":
        weight, bias = (
            torch.randn(classes, width, generator=rng) * math.sqrt(2 / classes),
            torch.zeros(classes),
        )
    elif rule == "zeros":
        weight, bias = torch.zeros(classes, width), torch.zeros(classes)
    return {"head.weight": weight, "head.bias": bias}


def prompt_init(shape: tuple[int, ...], patch_size: int, rng: torch.Generator) -> Tensor:
    """VPT's rule, U(-a, a) with a = sqrt(6 / (3 p^2 + d)); p is the patch size, never the image size."""
    bound = math.sqrt(6 / (3 * patch_size**2 + shape[-1]))
    return (2 * torch.rand(*shape, generator=rng) - 1) * bound


def linear(features: Tensor, theta: State) -> Tensor:
    """Each client's own head on its own features, (K, B, d) to (K, B, C)."""
    return torch.baddbmm(theta["head.bias"][:, None], features, theta["head.weight"].mT)


def cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Mean cross-entropy of each client over its real samples, (K,)."""
    return batch.mean(F.cross_entropy(logits.transpose(1, 2), batch.labels, reduction="none"))


class HeadedMethod(Method):
    """Shared prompts (if any) and a linear head. Subclasses give the prompts (`init_prompts`) and what the head reads
    (``features(theta, batch)``, (K, B, d))."""

    paper_policy: ClassVar[str] = "local"
    # Whether features of an image are the same in every epoch of an adaptation, where only the head trains: then they
    # are computed once. A method whose features draw random numbers leaves it False.
    fixed_inputs: ClassVar[bool] = False

    @property
    def local_head(self) -> bool:
        return self.task.head == "local"

    def prompted_blocks(self, name: str) -> int:
        """The depth that parameter ``name`` asks for, where 0 means all blocks of the backbone."""
        wanted, blocks = int(getattr(self.params, name)), self.backbone.depth
        if wanted > blocks:
            raise UserError(
                f"{self.name}: {name} = {wanted}, but backbone {self.backbone.name!r} has {blocks} blocks; "
                f"use 1 to {blocks}, or 0 for all."
            )
        return wanted or blocks

    def init_prompts(self, rng: torch.Generator) -> State:  # noqa: ARG002
        """The shared part other than the head."""
        return {}

    def features(self, theta: State, batch: Batch) -> Tensor:
        """What the head reads of each image, (K, B, d)."""
        raise NotImplementedError

    def _head(self, rng: torch.Generator) -> State:
        return head_init(self.params.head_init, self.task.num_classes, self.backbone.width, rng)

    def init_server(self, rng: torch.Generator) -> State:
        head, prompts = self._head(rng), self.init_prompts(rng)  # drawn alike under every policy and by every method
        return prompts if self.local_head else {**prompts, **head}

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        return self._head(rng) if self.local_head else {}

    def draw_prompts(self, shape: tuple[int, ...], rng: torch.Generator, blocks: Sequence[int]) -> Tensor:
        """First values (..., d) of the prompts that enter ``blocks``, one per index of the first axis or one for all.

        With `tokens` the draw stays, smaller: rows that began alike would have equal gradients and stay alike.
        """
        draw = prompt_init(shape, self.backbone.patch_size, rng)
        if self.params.init == "vpt":
            return draw
        if self.params.init == "small":
            return SMALL * draw
        means = self._token_means[list(blocks)]
        return SMALL * draw + means.view(-1, *[1] * (len(shape) - 2), shape[-1])

    @cached_property
    def _token_means(self) -> Tensor:
        """The mean token that enters each block when nothing is prompted, over the task's examples, (blocks, d)."""
        vit = self.backbone
        if vit.device.type == "meta":
            return torch.zeros(vit.depth, vit.width)
        if not len(self.task.examples):
            raise UserError(f"{self.name}: init = 'tokens' needs training images, and the task has none; use init=vpt.")
        with torch.no_grad():
            return vit.layer_inputs(self.task.examples.to(vit.device), vit.depth).mean((0, 2)).cpu()

    def rates(self) -> dict[str, float]:
        return self.rates_of(*self.init_prompts(torch.Generator()))

    def rates_of(self, *prompts: str) -> dict[str, float]:
        """The rate of the prompts for ``prompts``, and that of the head for the head."""
        lr, head_lr = self.params.lr, getattr(self.params, "head_lr", None)  # a head alone has one rate
        head = dict.fromkeys(("head.weight", "head.bias"), lr if head_lr is None else head_lr)
        return {**dict.fromkeys(prompts, lr), **head}

    def classify(self, features: Tensor, theta: State) -> Tensor:
        """Each client's own head on its own features, (K, B, d) to (K, B, C), normalised if the protocol says so."""
        normalised = self.task.head_input == "normalised"
        return linear(F.layer_norm(features, features.shape[-1:]) if normalised else features, theta)

    def logits(self, theta: State, batch: Batch) -> Tensor:
        return self.classify(batch.once(HEAD_INPUTS, lambda: self.features(theta, batch)), theta)

    def head_inputs(self, theta: State, batch: Batch) -> Tensor:
        """What the head reads, (K, B, d); in stage "adapt" the batch knows it as `HEAD_INPUTS`."""
        return self.features(theta, batch)

    def loss(self, theta: State, batch: Batch) -> Tensor:
        return cross_entropy(self.logits(theta, batch), batch)

    def predict(self, theta: State, batch: Batch) -> Tensor:
        return self.logits(theta, batch)
