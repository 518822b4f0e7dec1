"""A batch of several clients at once.

Clients of one round are trained together: axis 0 is the client. Clients of different sizes are padded to a rectangle
and masked; images are held packed, without padding, so that the backbone never computes a row that nobody needs.
How many rows are real is known to Python: no shape waits for a tensor's content, on a GPU or on `meta`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from fedprompt.core.errors import UserError

HEAD_INPUTS = "head inputs"  # the name under which a batch knows what its heads read


@dataclass(frozen=True)
class Batch:
    """K clients with up to B samples each. ``mask`` tells real rows from padding; padded entries are zero."""

    clients: tuple[int, ...]
    given_labels: Tensor | None  # what `labels` reads; None in a batch for prediction
    sizes: tuple[int, ...]  # real samples of each client; what follows them in its line is padding
    images: Tensor  # (n, 3, h, w) uint8, packed: the n real rows in order; there if the method needs "images"
    features: Tensor  # (K, B, d) frozen CLS features; there if the method needs "features"
    rngs: Sequence[torch.Generator]  # one per client, so that its noise does not depend on who trains with it
    stage: str = "train"
    start: Mapping[str, Tensor] = field(default_factory=dict)  # theta when the visit began: what a client received
    # (n, depth, 1+M, d), packed: tokens entering blocks without prompts; there if the method needs "layer inputs"
    layer_inputs: Tensor = field(default_factory=lambda: torch.empty(0))
    # (n, M, d), packed: normalised embeddings of the patches; there if the method needs "spatial tokens"
    patches: Tensor = field(default_factory=lambda: torch.empty(0))
    # What `once` has computed of these images, by name, while only heads change; None where nothing is kept.
    known: dict[str, Tensor] | None = None
    device: torch.device | str = "cpu"

    @property
    def labels(self) -> Tensor:
        """Classes of the samples, (K, B) int64. Batches of training data have them; those to predict do not."""
        if self.given_labels is None:
            raise UserError(
                "batches for prediction have no labels; predict from images alone (their shape is batch.shape), and "
                "read the labels of training data in loss or begin_evaluation."
            )
        return self.given_labels

    @property
    def shape(self) -> tuple[int, int]:
        """(K, B)."""
        return len(self.sizes), max(self.sizes)

    @cached_property
    def mask(self) -> Tensor:
        """(K, B) bool: true for real samples."""
        sizes = torch.tensor(self.sizes, device=self.device)
        return torch.arange(self.shape[1], device=self.device) < sizes[:, None]

    def once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """``compute()``, which no head enters: done once for all epochs and readings that differ in heads alone."""
        if self.known is None:
            return compute()
        if name not in self.known:
            self.known[name] = compute()
        return self.known[name]

    def with_head_inputs(self, packed: Tensor) -> "Batch":
        """This batch, knowing what its heads read, (n, d): it is the same in every epoch while only heads train."""
        return replace(self, known={HEAD_INPUTS: self.pad(packed)})

    def rows(self, per_client: Tensor) -> Tensor:
        """What each client has, (K, ...), repeated for each of its real samples, (n, ...)."""
        return per_client[self._owners]  # its gradient is summed in one order on every device, unlike index_select's

    def pack(self, per_sample: Tensor) -> Tensor:
        """(K, B, ...) to the real rows, (n, ...)."""
        lines = per_sample.flatten(0, 1)
        return lines if self._full else lines[self._places]

    def pad(self, packed: Tensor) -> Tensor:
        """(n, ...) back to (K, B, ...), zeros in the padding."""
        if not self._full:
            lines = packed.new_zeros(math.prod(self.shape), *packed.shape[1:])
            packed = lines.index_copy(0, self._places, packed)
        return packed.view(*self.shape, *packed.shape[1:])

    def normal(self, *shape: int) -> Tensor:
        """Standard normal noise for every sample, (K, B, *shape)."""
        return self._draw(torch.randn, shape)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform [0, 1) noise for every sample, (K, B, *shape)."""
        return self._draw(torch.rand, shape)

    def mean(self, per_sample: Tensor) -> Tensor:
        """Mean over a client's real samples, (K, B) to (K,)."""
        return (per_sample * self.mask).sum(1) / self.mask.sum(1).clamp(min=1)

    @property
    def _full(self) -> bool:
        return min(self.sizes) == self.shape[1]

    @cached_property
    def _owners(self) -> Tensor:
        return self._index(client for client, size in enumerate(self.sizes) for _ in range(size))

    @cached_property
    def _places(self) -> Tensor:
        """Where the real rows are among all K * B."""
        width = self.shape[1]
        return self._index(client * width + row for client, size in enumerate(self.sizes) for row in range(size))

    def _index(self, numbers: Iterable[int]) -> Tensor:
        return torch.tensor(list(numbers), dtype=torch.int64, device=self.device)

    def _draw(self, sampler: Callable[..., Tensor], shape: tuple[int, ...]) -> Tensor:
        if len(self.rngs) != len(self.sizes):
            raise ValueError("this batch has no random numbers; a method whose features draw sets fixed_inputs = False")
        # Drawn for the real rows only, on the CPU: the numbers depend neither on neighbours nor on the device.
        draws = [sampler(size, *shape, generator=rng) for size, rng in zip(self.sizes, self.rngs, strict=True)]
        return self.pad(torch.cat(draws).to(self.device))
