"""Frozen features: without augmentation they are a function of the image, so each is computed once and stored."""

import hashlib
import logging
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.core.errors import UserError
from fedprompt.core.files import cache_dir, write_atomic
from fedprompt.core.progress import track
from fedprompt.datasets import Dataset

CHUNK = 256
log = logging.getLogger(__name__)


@torch.no_grad()
def frozen_features(
    backbone: FrozenViT, dataset: Dataset, depth: int | None = None, rows: np.ndarray | None = None
) -> Tensor:
    """CLS features of a data set's images without prompts, (images, d), on the CPU.

    Args:
        backbone: computes on its own device.
        dataset: its images must have the backbone's size.
        depth: how many blocks; None means all.
        rows: the images that are needed; None means all. The features of others are zero.
    """
    if depth is not None and not 1 <= depth <= backbone.depth:
        raise UserError(
            f"features after {depth} blocks: backbone {backbone.name!r} has {backbone.depth}; use at most that many."
        )
    wanted_rows = np.arange(len(dataset.images)) if rows is None else rows
    features = torch.zeros(len(dataset.images), backbone.width)
    for start in track(range(0, len(wanted_rows), CHUNK), f"features of {dataset.name}"):
        chunk = wanted_rows[start : start + CHUNK]
        features[chunk] = backbone.cls(torch.from_numpy(np.array(dataset.images[chunk])), stop=depth).cpu()
    return features


def cached_features(
    backbone: FrozenViT, dataset: Dataset, depth: int | None = None, rows: np.ndarray | None = None
) -> Tensor:
    """:func:`frozen_features` from disk, if an earlier run with these weights and images has stored them.

    Stored features are verified by their digest. Those of weights from the hub are never stored: what the hub serves
    under a name may change.
    """
    if rows is not None and len(rows) > len(dataset.images) / 2:
        rows = None  # most of them: other partitions will want the rest
    key = f"{dataset.checksum}/{backbone.name}/{backbone.weights}/{backbone.image_size}/{backbone.device.type}"
    key += "" if depth in (None, backbone.depth) else f"/{depth}"
    key += "" if rows is None else f"/{hashlib.sha256(rows.tobytes()).hexdigest()}"
    path = cache_dir() / "features" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.safetensors"
    if backbone.weights == "hub":  # what the hub serves may change under the same name
        return frozen_features(backbone, dataset, depth, rows)
    if path.exists():
        try:
            return _load(path, key)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            log.warning("cached features %s are damaged (%s); they are computed again", path, error)
    features = frozen_features(backbone, dataset, depth, rows)
    with suppress(OSError):  # a cache that cannot be written costs time, nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, save({"features": features}, {"sha256": _digest(key, features)}))
    return features


def _load(path: Path, key: str) -> Tensor:
    """The tensor, if it is bit for bit the one that was saved for ``key``."""
    with safe_open(path, framework="pt") as file:
        features: Tensor = file.get_tensor("features")
        saved_digest = (file.metadata() or {}).get("sha256")
    if saved_digest != _digest(key, features):
        raise ValueError("they do not match their digest")
    return features


def _digest(key: str, features: Tensor) -> str:
    digest = hashlib.sha256(f"{key}\0{tuple(features.shape)}{features.dtype}".encode())
    digest.update(features.numpy().data)
    return digest.hexdigest()
