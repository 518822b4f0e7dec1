"""What prompt methods have in common: a linear head, local or global, and how prompts are drawn."""

import math
from dataclasses import Field, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.harness.core.errors import UserError
from fedprompt.harness.core.fields import option
from fedprompt.harness.model.batch import Batch
from fedprompt.methods._contract import Method, State

HEAD_MODES = ("local", "global", "global_then_ft")
HEAD_INITS = ("torch_default", "kaiming_fan_out", "zeros")


def revised(params: type, name: str, **changes: Any) -> Any:
    """The option ``name`` of the dataclass ``params`` for a subclass, with another default, range or note."""
    inherited: Field[Any] = params.__dataclass_fields__[name]  # type: ignore[attr-defined]
    default = changes.pop("default", inherited.default)
    return field(default=default, metadata={**inherited.metadata, **changes})


@dataclass(frozen=True)
class HeadParams:
    lr: float = option(0.01, "learning rate of everything that trains", low=0, paper="0.01", grid=(0.01, 0.05, 0.1))
    head_init: str = option("torch_default", "first draw of the head, the same for every client", choices=HEAD_INITS)


@dataclass(frozen=True)
class PromptParams(HeadParams):
    head_mode: str = option(
        "local",
        "who owns the head: the client, the server, or the server with fine-tuning before evaluation",
        choices=HEAD_MODES,
        paper="local",
    )
    length: int = option(10, "prompt tokens (of each prompted block)", low=0, paper="10")


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
    """Shared prompts (if any) and a linear head. Subclasses give the prompts and the feature."""

    @property
    def head_mode(self) -> str:
        return str(self.params.head_mode)

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

    def prompt_floats(self) -> int:
        """Floats of the shared part other than the head, by formula."""
        return 0

    def features(self, theta: State, batch: Batch) -> Tensor:
        """Image features, (K, B, d)."""
        raise NotImplementedError

    def _head(self, rng: torch.Generator) -> State:
        return head_init(self.params.head_init, self.task.num_classes, self.backbone.width, rng)

    def init_server(self, rng: torch.Generator) -> State:
        head, prompts = self._head(rng), self.init_prompts(rng)  # drawn alike in every head mode and by every method
        return prompts if self.head_mode == "local" else {**prompts, **head}

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        return self._head(rng) if self.head_mode == "local" else {}

    def rates(self) -> dict[str, float]:
        names = [*self.init_prompts(torch.Generator()), "head.weight", "head.bias"]
        return dict.fromkeys(names, self.params.lr)

    def logits(self, theta: State, batch: Batch) -> Tensor:
        return linear(self.features(theta, batch), theta)

    def loss(self, theta: State, batch: Batch) -> Tensor:
        return cross_entropy(self.logits(theta, batch), batch)

    def predict(self, theta: State, batch: Batch) -> Tensor:
        return self.logits(theta, batch)

    def finetune_before_evaluation(self) -> bool:
        return self.head_mode == "global_then_ft"

    def payload(self) -> tuple[int, int]:
        head = 0 if self.head_mode == "local" else self.task.num_classes * (self.backbone.width + 1)
        return self.prompt_floats() + head, self.prompt_floats() + head
