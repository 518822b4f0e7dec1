"""pFedPrompt: the shared context of PromptFL, and at prediction each client's own images as a memory. A reconstruction.

The memory is never stored and never sent: it is rebuilt from the client's training images for each evaluation.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._text import TextMethod, TextParams


@dataclass(frozen=True)
class PFedPromptParams(TextParams):
    alpha: float = option(1.0, "weight of the memory; 0 means PromptFL", low=0)
    beta: float = option(5.5, "how fast a memory fades with its distance to the image", low=0)
    memory_norm: str = option(
        "none",
        "per_class: a class counts as much as any other, however many images it has",
        choices=("none", "per_class"),
    )


class PFedPrompt(TextMethod):
    """Shared: one context. The memory is a constant of each evaluation."""

    name = "pfedprompt"
    title = "pFedPrompt"
    order = 245
    paper = "Guo et al., pFedPrompt: Learning Personalized Prompt for Vision-Language Models in FL (WWW 2023)"
    payload_formula = "m*d_t each way"
    Params = PFedPromptParams

    @cached_property
    def longest(self) -> int:
        """The most memories that a client has."""
        return int(self.task.train_counts.sum(1).max())

    def begin_evaluation(self, theta: State, batches: Iterable[Batch]) -> State:
        """Keys (K, n, d) and values (K, n, C) of the clients' training images; zeros fill up smaller clients."""
        plain = super().begin_evaluation(theta, [])
        if not self.longest:  # classes that nobody has trained on, and nobody remembers
            return plain
        keys, values = [], []
        for batch in batches:
            keys.append(self.image_features(batch))
            values.append(F.one_hot(batch.labels, self.task.num_classes) * batch.mask[..., None])
        missing = self.longest - sum(part.shape[1] for part in keys)
        # Equally long for every stack of clients: how sums are taken may not depend on who is evaluated together.
        memory = {
            name: F.pad(torch.cat(parts, dim=1), (0, 0, 0, max(0, missing)))
            for name, parts in (("keys", keys), ("values", values))
        }
        return {**plain, **memory}

    def predict(self, theta: State, batch: Batch) -> Tensor:
        plain, images = super().predict(theta, batch), self.image_features(batch)
        if "keys" not in batch.start:
            return plain
        keys, values = batch.start["keys"], batch.start["values"].to(images)
        if self.params.memory_norm == "per_class":
            values = values / values.sum(1, keepdim=True).clamp(min=1)
        alpha: float = self.params.alpha
        return plain + alpha * recall(images, keys, values, self.params.beta)


def recall(images: Tensor, keys: Tensor, values: Tensor, beta: float) -> Tensor:
    """What (K, B, d) find in a memory (K, n, d) of values (K, n, C): exp(-beta (1 - cosine)) of each, summed."""
    return torch.exp(beta * (images @ keys.mT - 1)) @ values
