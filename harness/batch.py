"""A batch of several clients at once.

Clients of one round are trained together: axis 0 is the client. Clients of different sizes are padded to a rectangle
and masked; images are held packed, without padding, so that the backbone never computes a row nobody needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """K clients with up to B samples each. ``mask`` tells real rows from padding; padded entries are zero."""

    clients: tuple[int, ...]
    labels: Tensor  # (K, B) int64
    mask: Tensor  # (K, B) bool
    images: Tensor  # (n, 3, h, w) uint8, packed: the n real rows in order; there if the method needs "images"
    features: Tensor  # (K, B, d) frozen CLS features; there if the method needs "features"
    rngs: Sequence[torch.Generator]  # one a client: its noise is its own, whoever trains beside it
    stage: str = "train"
    start: Mapping[str, Tensor] = field(default_factory=dict)  # theta when the visit began: what a client received

    def rows(self, per_client: Tensor) -> Tensor:
        """What each client has, (K, ...), repeated for each of its real samples, (n, ...)."""
        return per_client[self._owners]

    def pack(self, per_sample: Tensor) -> Tensor:
        """(K, B, ...) to the real rows, (n, ...)."""
        return per_sample[self.mask]

    def pad(self, packed: Tensor) -> Tensor:
        """(n, ...) back to (K, B, ...), zeros in the padding."""
        padded = packed.new_zeros(*self.mask.shape, *packed.shape[1:])
        return padded.masked_scatter(self.mask.view(*self.mask.shape, *[1] * (packed.dim() - 1)), packed)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal noise for every sample, (K, B, *shape)."""
        return self._draw(torch.randn, shape)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform [0, 1) noise for every sample, (K, B, *shape)."""
        return self._draw(torch.rand, shape)

    def mean(self, per_sample: Tensor) -> Tensor:
        """Mean over a client's real samples, (K, B) to (K,)."""
        return (per_sample * self.mask).sum(1) / self.mask.sum(1).clamp(min=1)

    @cached_property
    def _owners(self) -> Tensor:
        return torch.arange(len(self.clients), device=self.mask.device).repeat_interleave(self.mask.sum(1))

    def _draw(self, sampler: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        # Drawn for the real rows only, on the CPU: the numbers depend neither on neighbours nor on the device.
        sizes = self.mask.sum(1).tolist()
        draws = [sampler(size, *shape, generator=rng) for size, rng in zip(sizes, self.rngs, strict=True)]
        return self.pad(torch.cat(draws).to(self.mask.device))
