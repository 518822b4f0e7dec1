"""A data set as the harness sees it: arrays in memory (or mapped from disk), never files to decode."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Images(Protocol):
    """An array of images, or what can be indexed like one."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> np.ndarray: ...


@dataclass(frozen=True)
class Dataset:
    """All images of a source and their split; row ``i`` of every array is image ``i``."""

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
        return int(self.images.shape[-1])

    @property
    def num_classes(self) -> int:
        return len(self.class_names)
