"""The prepared store: one folder of plain .npy arrays and a meta.json with their checksums.

A store is written beside its final place and renamed into it, so a folder with that name is whole.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from fedprompt.datasets._dataset import Dataset
from fedprompt.harness.errors import UserError

ARRAYS = ("images", "labels", "domains", "is_test")
VERSION = 1


def cache_dir() -> Path:
    """Where prepared data live: $FEDPROMPT_CACHE, else the user's cache folder."""
    chosen = os.environ.get("FEDPROMPT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "fedprompt"


def content_checksum(
    arrays: dict[str, np.ndarray], class_names: tuple[str, ...], domain_names: tuple[str, ...]
) -> str:
    """SHA-256 over the arrays (shape, type and bytes) and the ordered names."""
    digest = hashlib.sha256(json.dumps([class_names, domain_names]).encode())
    for name in ARRAYS:
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.shape}{array.dtype.str}".encode())
        digest.update(array.data)
    return digest.hexdigest()


def write_store(
    folder: Path,
    name: str,
    arrays: dict[str, np.ndarray],
    class_names: tuple[str, ...],
    domain_names: tuple[str, ...],
) -> Dataset:
    """Write a store for ``folder``, whole or not at all, and open it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        for key in ARRAYS:
            np.save(scratch / f"{key}.npy", arrays[key])
        meta = {
            "version": VERSION,
            "name": name,
            "class_names": class_names,
            "domain_names": domain_names,
            "checksum": content_checksum(arrays, class_names, domain_names),
            "bytes": {key: (scratch / f"{key}.npy").stat().st_size for key in ARRAYS},
        }
        (scratch / "meta.json").write_text(json.dumps(meta, indent=1))
        if folder.exists():
            shutil.rmtree(folder)
        scratch.rename(folder)
    except OSError as error:
        if not (folder / "meta.json").exists():  # a neighbour process may have finished the same store first
            raise UserError(f"cannot write the prepared data {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return open_store(folder)


def open_store(folder: Path, verify: bool = False) -> Dataset:
    """Map a store from disk. ``verify`` reads every byte and compares checksums; else only sizes count."""
    try:
        meta = json.loads((folder / "meta.json").read_text())
        arrays = {key: np.load(folder / f"{key}.npy", mmap_mode="r") for key in ARRAYS}
        sizes = {key: (folder / f"{key}.npy").stat().st_size for key in ARRAYS}
    except (OSError, ValueError) as error:
        raise UserError(
            f"prepared data {folder} cannot be read ({error}); delete the folder and prepare again"
        ) from error
    class_names, domain_names = tuple(meta["class_names"]), tuple(meta["domain_names"])
    whole = meta.get("version") == VERSION and sizes == meta["bytes"]
    if not whole or (verify and content_checksum(arrays, class_names, domain_names) != meta["checksum"]):
        raise UserError(
            f"prepared data {folder} do not match their checksum; delete the folder and prepare again"
        )
    return Dataset(
        meta["name"], **arrays, class_names=class_names, domain_names=domain_names, checksum=meta["checksum"]
    )
