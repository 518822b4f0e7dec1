"""The prepared store: one folder with plain .npy arrays and a meta.json with their checksum.

A store is written next to its final place and renamed into it, so a folder with that name is complete. Every byte is
compared with the checksum when the store is first opened after a change of size, times or inode of any of its files;
`verified.json` keeps what they were then. Opening an unchanged store costs five calls of stat.
"""

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from filelock import FileLock

from fedprompt.core.errors import UserError
from fedprompt.core.files import write_atomic
from fedprompt.core.untrusted import map_array, read_table
from fedprompt.datasets._dataset import Dataset

FORMS: dict[str, tuple[int, type]] = {  # axes and type of each array
    "images": (4, np.uint8),
    "labels": (1, np.int64),
    "domains": (1, np.int64),
    "is_test": (1, np.bool_),
}
ARRAYS = tuple(FORMS)
VERSION = 1
_REMEDY = "delete the folder and prepare again"
META, VERIFIED = "meta.json", "verified.json"
STALE = 24 * 3600  # seconds after which no process can still be writing a scratch folder


def running_digests(
    arrays: dict[str, np.ndarray], class_names: tuple[str, ...], domain_names: tuple[str, ...]
) -> dict[str, str]:
    """SHA-256 over the ordered names and the arrays (shape, type and bytes) up to and including each array.

    The last one covers everything: it is the data set's checksum. The first one that differs names the damaged file.
    """
    digest = hashlib.sha256(json.dumps([class_names, domain_names]).encode())
    digests = {}
    for name in ARRAYS:
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name}{array.shape}{array.dtype.str}".encode())
        digest.update(array.data)
        digests[name] = digest.hexdigest()
    return digests


def write_store(
    folder: Path,
    name: str,
    arrays: dict[str, np.ndarray],
    class_names: tuple[str, ...],
    domain_names: tuple[str, ...],
    **notes: Any,
) -> Dataset:
    """Write a store to ``folder``, completely or not at all, and open it.

    Args:
        folder: replaced if it exists.
        name: the data set's.
        arrays: ``images`` uint8 (n, 3, h, w), ``labels``, ``domains`` and ``is_test`` (n,).
        class_names: by label.
        domain_names: by number of the domain.
        notes: further entries of meta.json.
    """
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
        raise cannot_write(folder, error) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def new_store(folder: Path) -> Iterator[Path]:
    """A scratch folder that replaces ``folder`` if the block completes it, and vanishes otherwise.

    Complete it with :func:`write_images`, then :func:`write_rest`.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        scratch = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
        scratch.mkdir()  # plainly, so that its mode follows the umask
    except OSError as error:
        raise cannot_write(folder, error) from error
    try:
        yield scratch
        if (scratch / VERIFIED).exists():  # the last file to be written
            _take_place(scratch, folder)
    except OSError as error:
        raise cannot_write(folder, error) from error
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
    for key in ARRAYS[1:]:
        np.save(scratch / f"{key}.npy", np.asarray(arrays[key], FORMS[key][1]))
    mapped = {key: np.load(scratch / f"{key}.npy", mmap_mode="r") for key in ARRAYS}
    digests = running_digests(mapped, class_names, domain_names)
    meta = {
        "version": VERSION,
        "name": name,
        "class_names": class_names,
        "domain_names": domain_names,
        "checksum": digests[ARRAYS[-1]],
        "digests": digests,
        "bytes": {key: (scratch / f"{key}.npy").stat().st_size for key in ARRAYS},
        **notes,
    }
    (scratch / META).write_text(json.dumps(meta, indent=1))
    (scratch / VERIFIED).write_text(json.dumps(_stamps(scratch)))


def open_store(folder: Path, verify: bool = False) -> Dataset:
    """Map a store from disk. Its bytes are compared with its checksum if a file was touched since, or if ``verify``.

    The folder may come from anywhere: whatever is wrong with it is one UserError, which says to prepare again.
    """
    try:
        stamps = _stamps(folder)  # before anything is read, so that a later change is noticed next time
        meta = read_meta(folder)
        arrays = {key: _map(folder, key) for key in ARRAYS}
        class_names, domain_names = (_names(meta, key) for key in ("class_names", "domain_names"))
        dataset = Dataset(
            str(meta["name"]), **arrays, class_names=class_names, domain_names=domain_names, checksum=meta["checksum"]
        )
        if meta["version"] != VERSION:
            raise ValueError(f"version {meta['version']} instead of {VERSION}")
        if len({len(array) for array in arrays.values()}) > 1:
            raise ValueError("its arrays differ in length")
        short = next((key for key in ARRAYS if stamps[f"{key}.npy"][0] != meta["bytes"][key]), None)
    except (UserError, OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"prepared data {folder} cannot be read ({error}); {_REMEDY}") from error
    damaged = short or (_damaged_array(dataset, meta) if verify or _verified(folder) != stamps else None)
    if damaged:
        raise UserError(f"prepared data {folder / damaged}.npy do not match their checksum; {_REMEDY}")
    if _verified(folder) != stamps:
        for key, names in (("labels", class_names), ("domains", domain_names)):
            if len(arrays[key]) and not 0 <= arrays[key].min() <= arrays[key].max() < len(names):
                raise UserError(f"prepared data {folder / key}.npy number more than the {len(names)} names; {_REMEDY}")
        with suppress(OSError):  # a folder of somebody else's: the next one to open it checks again
            write_atomic(folder / VERIFIED, json.dumps(stamps).encode())
    return dataset


def _map(folder: Path, key: str) -> np.memmap:
    array, (axes, kind) = map_array(folder / f"{key}.npy"), FORMS[key]
    if array.ndim != axes or array.dtype != kind:
        raise ValueError(f"{key}.npy has the shape {array.shape} and type {array.dtype}")
    return array


def _names(meta: dict[str, Any], key: str) -> tuple[str, ...]:
    names = meta[key]
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{META} has no list of names as {key}")
    return tuple(names)


def _damaged_array(dataset: Dataset, meta: dict[str, Any]) -> str | None:
    """The first array that is not what was written; None if all are."""
    arrays = {key: getattr(dataset, key) for key in ARRAYS}
    digests = running_digests(arrays, dataset.class_names, dataset.domain_names)
    if digests[ARRAYS[-1]] == dataset.checksum:
        return None
    saved = meta.get("digests")
    known = saved if isinstance(saved, dict) else {}
    return next((key for key in ARRAYS if known.get(key) != digests[key]), ARRAYS[0])


def _stamps(folder: Path) -> dict[str, list[int]]:
    """Size, times and inode of every file; writing to a file changes at least ctime, which nobody can set back."""
    stats = {name: (folder / name).stat() for name in (META, *(f"{key}.npy" for key in ARRAYS))}
    return {name: [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino] for name, stat in stats.items()}


def _verified(folder: Path) -> Any:
    """The stamps of the last full check."""
    try:
        return read_table(folder / VERIFIED)
    except UserError:
        return None


def read_meta(folder: Path) -> dict[str, Any]:
    """What a store says of itself: names, checksum, and where its images came from."""
    return read_table(folder / META)


def is_store(folder: Path, fingerprint: str = "") -> bool:
    """Whether ``folder`` is a store that was made from the files that ``fingerprint`` stands for."""
    try:
        return bool(read_meta(folder).get("fingerprint", "") == fingerprint)
    except UserError:
        return False


def _write_header(file: IO[bytes], shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})


def _take_place(scratch: Path, folder: Path) -> None:
    """Two renames, so that a reader finds the old store or the new one, and almost never neither."""
    old = scratch.with_name(f"{scratch.name}-old")
    if folder.exists():
        folder.rename(old)
    try:
        scratch.rename(folder)
    except OSError:
        if not (folder / META).exists():  # otherwise another process finished the same store first
            raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _remove_stale(folder: Path) -> None:
    """Remove what killed processes left behind."""
    for path in folder.parent.glob(f".{folder.name}-*"):
        if time.time() - path.stat().st_mtime > STALE:
            shutil.rmtree(path, ignore_errors=True)


def cannot_write(folder: Path, error: OSError) -> UserError:
    """The error for a full disk or a folder without permission."""
    return UserError(
        f"cannot write the prepared data {folder}: {error.strerror or error}; nothing was left behind (FEDPROMPT_CACHE "
        "names another place)"
    )
