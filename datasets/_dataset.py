"""A data set as the harness sees it: arrays in memory (or mapped from disk), never files to decode."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Images(Protocol):
    """What images of a data set can do: an array, a memory map, or images that are resized when asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(images, 3, height, width)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> np.ndarray: ...


@dataclass(frozen=True)
class Dataset:
    """All images of a source and their split; row ``i`` of every array is image ``i``.

    Clients hold row numbers and look up images, labels and domains by them, so that no image can meet the label of
    another. Names are ordered: a label means the same class in every process.
    """

    name: str
    images: Images  # uint8, (n, 3, height, width); often a memory map
    labels: np.ndarray  # int64, (n,)
    domains: np.ndarray  # int64, (n,); all zero if the source has no domains
    is_test: np.ndarray  # bool, (n,)
    class_names: tuple[str, ...]  # class_names[label]
    domain_names: tuple[str, ...]  # domain_names[domain]
    checksum: str  # content hash of the arrays and names

    @property
    def image_size(self) -> int:
        """The side of the square images, in pixels."""
        return int(self.images.shape[-1])

    @property
    def num_classes(self) -> int:
        """How many classes there are, whether or not a client has images of all of them."""
        return len(self.class_names)
