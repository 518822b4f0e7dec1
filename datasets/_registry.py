"""Data sets by name: the ones that ship with the suite and those of installed packages."""

from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np

from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._store import cache_dir, open_store, write_store
from fedprompt.harness.errors import UserError, unknown

GROUP = "fedprompt.datasets"
Loader = Callable[[Path | None], Dataset]


def _glyph_domains(root: Path | None) -> Dataset:  # noqa: ARG001
    from fedprompt.datasets.glyphs import glyph_domains

    return glyph_domains()


def _glyph_100(root: Path | None) -> Dataset:  # noqa: ARG001
    from fedprompt.datasets.glyphs import glyph_100

    return glyph_100()


BUILT_IN: dict[str, Loader] = {"glyph-domains": _glyph_domains, "glyph-100": _glyph_100}


def dataset_names() -> list[str]:
    """Every name that :func:`load_dataset` knows, sorted."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))})


def load_dataset(name: str, *, root: Path | None = None, image_size: int | None = None) -> Dataset:
    """Open a data set at ``image_size`` (None: its own), prepared on first use and mapped from disk later.

    ``root`` is the folder with the downloaded files; it is not needed once the data set is prepared.
    """
    dataset = _loader(name)(root)
    if image_size is None or image_size == dataset.image_size:
        return dataset
    if image_size < 1:
        raise UserError(f"image_size={image_size} must be at least 1")
    return resized(dataset, image_size)


def _loader(name: str) -> Loader:
    if name in BUILT_IN:
        return BUILT_IN[name]
    for point in entry_points(group=GROUP):
        if point.name == name:
            return point.load()
    raise unknown("data set", name, dataset_names())


def resized(dataset: Dataset, size: int) -> Dataset:
    """The data set at another image size, from a store kept for this content and size."""
    folder = cache_dir() / "resized" / f"{dataset.name}-{dataset.checksum[:16]}-{size}"
    if (folder / "meta.json").exists():
        return open_store(folder)
    arrays = {key: np.asarray(getattr(dataset, key)) for key in ("labels", "domains", "is_test")}
    arrays["images"] = resize_images(dataset.images, size)
    return write_store(folder, dataset.name, arrays, dataset.class_names, dataset.domain_names)


def resize_images(images: np.ndarray, size: int) -> np.ndarray:
    """Bilinear with antialias, uint8 in and out; Pillow's integer arithmetic is the same on every machine."""
    from PIL import Image

    out = np.empty((len(images), 3, size, size), np.uint8)
    for row, image in enumerate(images):
        picture = Image.fromarray(np.ascontiguousarray(np.moveaxis(image, 0, -1)))
        out[row] = np.moveaxis(np.asarray(picture.resize((size, size), Image.Resampling.BILINEAR)), -1, 0)
    return out
