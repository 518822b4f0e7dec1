"""Labels to plan with: the real ones where the data are at hand, else what is published about their number."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedprompt.core.errors import UserError
from fedprompt.datasets import SOURCES, Dataset, MissingDataError, load_labels

# (train, test) images of each domain, dealt to the classes evenly, and where the numbers come from.
_DOMAINNET = "the paper's 1,830 {} per domain; classes of equal size {}are assumed"
_FEW_SHOT = "{}; classes of equal size are assumed"
PUBLISHED: dict[str, tuple[tuple[tuple[int, int], ...], str]] = {
    "cifar10": (((50_000, 10_000),), "5,000 train and 1,000 test images per class"),
    "cifar100": (((50_000, 10_000),), "500 train and 100 test images per class"),
    "tiny-imagenet": (((100_000, 10_000),), "500 train and 50 test images per class"),
    "flowers102": (((2_040, 6_149),), _FEW_SHOT.format("2,040 train and 6,149 test images")),
    "oxford-pets": (((3_680, 3_669),), _FEW_SHOT.format("3,680 train and 3,669 test images")),
    "caltech101": (((6_594, 1_648),), _FEW_SHOT.format("8,242 images, a fifth of them test")),
    "dtd": (((3_760, 1_880),), "80 train and 40 test images per class"),
    "food101": (((75_750, 25_250),), "750 train and 250 test images per class"),
    "domainnet": (((1830, 780),) * 6, _DOMAINNET.format("train images", "and 780 test images (70 : 30) ")),
    "domainnet-total": (((1460, 370),) * 6, _DOMAINNET.format("images", "")),
    "pacs": (
        ((1840, 208), (2107, 237), (1499, 171), (3534, 395)),
        "2,048, 2,344, 1,670 and 3,929 images per domain; a tenth of them test, classes of equal size are assumed",
    ),
    "office-caltech10": (
        ((766, 192), (898, 225), (126, 31), (236, 59)),
        "958, 1,123, 157 and 295 images per domain; a fifth of them test, classes of equal size are assumed",
    ),
}


@dataclass(frozen=True)
class Labelled:
    dataset: Dataset  # without images, unless they were at hand
    note: str = ""  # what is assumed; empty where the labels are the real ones


def labelled(name: str, root: Path | None = None) -> Labelled:
    """What a partition is made of. Public data sets are not prepared for it, and none of their images is decoded."""
    try:
        return Labelled(load_labels(name, root))
    except MissingDataError:
        if name not in SOURCES:
            raise
    if name not in PUBLISHED:
        raise UserError(f"{name} is not prepared, so its sizes are unknown; run: fedprompt prepare {name} --root DIR")
    return Labelled(published(name), f"{name} is not at hand: {PUBLISHED[name][1]}")


def published(name: str) -> Dataset:
    """A data set of the published sizes, without images."""
    domains, _ = PUBLISHED[name]
    parts = [(domain, test, count) for domain, sizes in enumerate(domains) for test, count in enumerate(sizes)]
    classes = SOURCES[name].classes
    return Dataset(
        name,
        _no_images(sum(map(sum, domains))),
        np.concatenate([np.arange(count) % classes for _, _, count in parts]),
        np.concatenate([np.full(count, domain) for domain, _, count in parts]),
        np.concatenate([np.full(count, bool(test)) for _, test, count in parts]),
        tuple(map(str, range(classes))),
        SOURCES[name].domains,
        checksum="",
    )


def _no_images(count: int) -> np.ndarray:
    return np.empty((count, 3, 0, 0), np.uint8)
