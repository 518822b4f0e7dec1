"""The run folder `<out>/runs/<hash>/`: what resume and offline work need.

    cell.json               the cell, resolved
    partition.npz           who has what
    records.csv             one row per evaluated round, reading (policy of the head), client and domain
    scores.gz               reported rounds image by image, all readings: what measures are computed from
    rounds.csv              one row per round: cohort, loss, floats and bytes each way, the method's diagnostics
    checkpoint.journal      the state after the last finished round, and how much of the three tables belongs to it
    summary.json            the reported numbers, the partition's hash, the data's checksum, the environment
    failed.json             why the last attempt stopped, if it did
    done                    written last; the run is finished, and these are the digests of its files

The tables and the journal grow from round to round (`journal.py`); every other file appears whole, by renaming.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from fedprompt.core.errors import UserError
from fedprompt.core.files import write_atomic
from fedprompt.harness.running.cell import Cell

DONE, FAILURE_NOTE = "done", "failed.json"
KEPT = ("cell.json", "partition.npz", "records.csv", "rounds.csv", "scores.gz", "summary.json")
REMEDY = "start the cell over with --restart (in a suite: --restart-cell and the folder's name)."


def run_folder(out: Path, cell: Cell) -> Path:
    return out / "runs" / cell.hash


def is_done(folder: Path) -> bool:
    return (folder / DONE).exists()


class LockedError(UserError):
    """Another process is running the cell."""

    def __init__(self, cell: Cell) -> None:
        super().__init__(f"{cell.label} ({cell.hash}) is being run by another process; wait for it or stop it.")


def is_locked(folder: Path) -> bool:
    """Whether a process is running the folder's cell at this moment."""
    if not (folder / ".lock").exists():
        return False
    try:
        with FileLock(folder / ".lock", blocking=False):
            return False
    except Timeout:
        return True
    except OSError:  # it cannot be opened, which `open_folder` explains
        return False


@contextmanager
def open_folder(folder: Path, cell: Cell, restart: bool = False) -> Iterator[None]:
    """Lock ``folder`` for this process; refuse one that another process holds or that belongs to another cell."""
    lock = FileLock(folder / ".lock")  # the system releases it when the process ends, however it ends
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder_lock = lock.acquire(blocking=False)
    except Timeout as error:
        raise LockedError(cell) from error
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out DIR.") from error
    with folder_lock:
        for scratch in folder.glob(".*-*"):  # left by a process that was killed while it wrote
            scratch.unlink(missing_ok=True)
        if restart:
            _clear(folder)
        owner = folder / "cell.json"
        if owner.exists() and owner.read_text() != cell.to_json():
            raise UserError(f"{folder} holds another cell's run; {REMEDY}")
        write_atomic(owner, cell.to_json().encode())
        yield


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def finish(folder: Path, summary: dict[str, object]) -> None:
    """Write the summary of a run whose tables are complete, then the marker."""
    write_atomic(folder / "summary.json", json.dumps(summary, indent=1, sort_keys=True).encode())
    (folder / FAILURE_NOTE).unlink(missing_ok=True)
    digests = {name: _digest(folder / name) for name in KEPT if (folder / name).exists()}
    write_atomic(folder / DONE, json.dumps(digests, indent=1).encode())


def damaged_file(folder: Path) -> str:
    """The first file of a finished run that is not what the run wrote; empty if there is none."""
    try:
        digests = dict(json.loads((folder / DONE).read_text()))
    except (OSError, ValueError, TypeError):
        return DONE
    for name, digest in digests.items():
        try:
            if _digest(folder / name) != digest:
                return str(name)
        except OSError:
            return str(name)
    return ""


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def failure_note(folder: Path) -> str:
    """Why the last attempt stopped; empty if it did not, or if nobody could say."""
    try:
        return str(json.loads((folder / FAILURE_NOTE).read_text())["reason"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return "its note cannot be read"


def note_failure(folder: Path, reason: str) -> None:
    if folder.is_dir():
        write_atomic(folder / FAILURE_NOTE, json.dumps({"reason": reason}).encode())
