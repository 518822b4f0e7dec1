"""The prepared store: one folder with plain .npy arrays and a meta.json with their checksum.

A store is written beside its final place and renamed into it, so a folder with that name is complete.
"""

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from filelock import FileLock

from fedprompt.datasets._dataset import Dataset
from fedprompt.harness.core.errors import UserError

ARRAYS = ("images", "labels", "domains", "is_test")
VERSION = 1
STALE = 24 * 3600  # seconds after which nobody can still be writing a scratch folder


def content_checksum(arrays: dict[str, np.ndarray], class_names: tuple[str, ...], domain_names: tuple[str, ...]) -> str:
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
    **notes: Any,
) -> Dataset:
    """Write a store to ``folder``, completely or not at all, and open it. ``notes`` go into meta.json."""
    with new_store(folder) as scratch:
        write_images(scratch, [arrays["images"]])
        write_rest(scratch, name, arrays, class_names, domain_names, **notes)
    return open_store(folder)


@contextmanager
def one_writer(folder: Path) -> Iterator[None]:
    """Others who want to write the same store wait, and can then open it instead of writing it."""
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def new_store(folder: Path) -> Iterator[Path]:
    """A scratch folder that takes the place of ``folder`` if the block completes it, and vanishes otherwise."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        yield scratch
        if (scratch / "meta.json").exists():  # the last file to be written
            _take_place(scratch, folder)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def write_images(scratch: Path, chunks: Iterable[np.ndarray]) -> int:
    """Append chunks (n, 3, height, width) to images.npy and return their number.

    Plain writes, since a full disk under a memory map kills the process instead of raising an error.
    """
    count, shape = 0, None
    with (scratch / "images.npy").open("wb") as file:
        for chunk in chunks:
            if shape is None:
                shape = chunk.shape[1:]
                _write_header(file, (0, *shape))
            file.write(np.ascontiguousarray(chunk, np.uint8).data)
            count += len(chunk)
        file.seek(0)  # NumPy pads the header so that it keeps its length when the first axis grows
        _write_header(file, (count, *(shape or (3, 0, 0))))
    return count


def write_rest(
    scratch: Path,
    name: str,
    arrays: dict[str, np.ndarray],
    class_names: tuple[str, ...],
    domain_names: tuple[str, ...],
    **notes: Any,
) -> None:
    """Complete a store whose images are written: the other arrays and meta.json."""
    for key, kind in (("labels", np.int64), ("domains", np.int64), ("is_test", np.bool_)):
        np.save(scratch / f"{key}.npy", np.asarray(arrays[key], kind))
    mapped = {key: np.load(scratch / f"{key}.npy", mmap_mode="r") for key in ARRAYS}
    meta = {
        "version": VERSION,
        "name": name,
        "class_names": class_names,
        "domain_names": domain_names,
        "checksum": content_checksum(mapped, class_names, domain_names),
        "bytes": {key: (scratch / f"{key}.npy").stat().st_size for key in ARRAYS},
        **notes,
    }
    (scratch / "meta.json").write_text(json.dumps(meta, indent=1))


def open_store(folder: Path, verify: bool = False) -> Dataset:
    """Map a store from disk. ``verify`` reads every byte and compares checksums; otherwise only sizes are compared."""
    try:
        meta = read_meta(folder)
        arrays = {key: np.load(folder / f"{key}.npy", mmap_mode="r") for key in ARRAYS}
        sizes = {key: (folder / f"{key}.npy").stat().st_size for key in ARRAYS}
        class_names, domain_names = tuple(meta["class_names"]), tuple(meta["domain_names"])
        intact = meta["version"] == VERSION and sizes == meta["bytes"]
        checksum = meta["checksum"]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"prepared data {folder} cannot be read ({error}); delete the folder and prepare again"
        ) from error
    if not intact or (verify and content_checksum(arrays, class_names, domain_names) != checksum):
        raise UserError(f"prepared data {folder} do not match their checksum; delete the folder and prepare again")
    return Dataset(meta["name"], **arrays, class_names=class_names, domain_names=domain_names, checksum=checksum)


def read_meta(folder: Path) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads((folder / "meta.json").read_text())
    return meta


def is_store(folder: Path, fingerprint: str = "") -> bool:
    """Whether ``folder`` holds a store that was made from the files that ``fingerprint`` stands for."""
    try:
        return bool(read_meta(folder).get("fingerprint", "") == fingerprint)
    except (OSError, ValueError):
        return False


def _write_header(file: IO[bytes], shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})


def _take_place(scratch: Path, folder: Path) -> None:
    """Two renames, so that a reader finds the old store or the new one, and hardly ever neither."""
    old = scratch.with_name(f"{scratch.name}-old")
    if folder.exists():
        folder.rename(old)
    try:
        scratch.rename(folder)
    except OSError:
        if not (folder / "meta.json").exists():  # otherwise another process finished the same store first
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _remove_stale(folder: Path) -> None:
    """Remove what killed processes left behind."""
    for path in folder.parent.glob(f".{folder.name}-*"):
        if time.time() - path.stat().st_mtime > STALE:
            shutil.rmtree(path, ignore_errors=True)


def _cannot_write(folder: Path, error: OSError) -> UserError:
    return UserError(f"cannot write the prepared data {folder}: {error.strerror or error}; nothing was left behind")
