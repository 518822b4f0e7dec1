"""Frozen features: without augmentation they are a function of the image, so each is computed once and kept."""

import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._store import cache_dir
from fedprompt.harness.backbone import FrozenViT
from fedprompt.harness.errors import UserError
from fedprompt.harness.progress import track

CHUNK = 256


@torch.no_grad()
def frozen_features(backbone: FrozenViT, dataset: Dataset, depth: int | None = None) -> Tensor:
    """CLS features of all images without prompts, after ``depth`` blocks (all by default), (images, d), on the CPU."""
    if depth is not None and not 1 <= depth <= backbone.depth:
        raise UserError(
            f"features after {depth} blocks: backbone {backbone.name!r} has {backbone.depth}; use at most that many."
        )
    starts = range(0, len(dataset.images), CHUNK)
    chunks = track(starts, f"features of {dataset.name}")
    parts = (torch.from_numpy(np.array(dataset.images[i : i + CHUNK])) for i in chunks)
    return torch.cat([backbone.cls(images, stop=depth).cpu() for images in parts])


def cached_features(backbone: FrozenViT, dataset: Dataset, depth: int | None = None) -> Tensor:
    """The same from disk where a run with these weights and these images has left them."""
    key = f"{dataset.checksum}/{backbone.name}/{backbone.weights}/{backbone.image_size}/{backbone.device.type}"
    if depth not in (None, backbone.depth):
        key += f"/{depth}"
    path = cache_dir() / "features" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.npy"
    if backbone.weights == "hub":  # what the hub serves may change under the same name
        return frozen_features(backbone, dataset, depth)
    try:
        return torch.from_numpy(np.load(path))
    except (OSError, ValueError, EOFError):
        features = frozen_features(backbone, dataset, depth)
        _save(path, features.numpy())
        return features


def _save(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, scratch = tempfile.mkstemp(dir=path.parent, suffix=".part")
    with os.fdopen(handle, "wb") as file:
        np.save(file, array)
    Path(scratch).replace(path)
