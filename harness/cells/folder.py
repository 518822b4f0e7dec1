"""The run folder `<out>/runs/<hash>/`: what resume and offline work need.

    cell.json               the cell, resolved
    checkpoint.safetensors  the state after the last finished round, with all records so far
    partition.npz           who has what
    records.csv             one row per evaluated round, reading (policy of the head), client and domain
    rounds.csv              one row per round: cohort, loss, floats and bytes each way, the method's diagnostics
    summary.json            the reported numbers, the partition's hash, the data's checksum, the environment
    failed.json             why the last attempt stopped, if it did
    done                    written last; the run is finished

Every file but the lock appears whole, by renaming. The checkpoint is one file, so state and records cannot disagree.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pandas as pd
import safetensors
import safetensors.torch
import torch
from filelock import FileLock, Timeout

from fedprompt.harness.cells.cell import Cell
from fedprompt.harness.core.errors import UserError
from fedprompt.harness.core.files import write_atomic
from fedprompt.harness.federation.evaluation import Record
from fedprompt.harness.federation.rounds import FederationState, RoundLog

CHECKPOINT, DONE, FAILURE_NOTE = "checkpoint.safetensors", "done", "failed.json"


@dataclass
class Checkpoint:
    """A federation after some rounds: its state and what has been recorded so far."""

    state: FederationState
    records: list[Record] = field(default_factory=list)
    logs: list[RoundLog] = field(default_factory=list)


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
            raise UserError(f"{folder} holds another cell's run; {_restart(cell)}")
        write_atomic(owner, cell.to_json().encode())
        yield


def _restart(cell: Cell) -> str:
    return f"start the cell over with --restart, in a suite with --restart-cell {cell.hash}."


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


def save_checkpoint(folder: Path, cell: Cell, run: Checkpoint) -> None:
    state = run.state
    tensors = {f"server/{name}": tensor for name, tensor in state.server.items()}
    for part in ("personal", "local"):
        for client, client_state in getattr(state, part).items():
            tensors |= {f"{part}/{client}/{name}": tensor for name, tensor in client_state.items()}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    meta = {
        "cell": cell.hash,
        "round": state.round,
        "clients": {part: list(getattr(state, part)) for part in ("personal", "local")},
        "records": [list(asdict(record).values()) for record in run.records],
        "logs": [list(asdict(log).values()) for log in run.logs],
    }
    text = json.dumps(meta)
    content = safetensors.torch.save(tensors, {"run": text, "digest": _digest(text, tensors)})
    write_atomic(folder / CHECKPOINT, content)


def load_checkpoint(folder: Path, cell: Cell, device: str | torch.device = "cpu") -> Checkpoint | None:
    """The run so far, or None if there is no checkpoint; one that is damaged or another cell's is refused."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    remedy = _restart(cell)
    try:
        with safetensors.safe_open(path, "pt", device=str(device)) as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        text, digest = header["run"], header["digest"]
    except (OSError, KeyError, safetensors.SafetensorError) as error:
        raise UserError(
            f"checkpoint {path} cannot be read ({type(error).__name__}: half-written?); {remedy}"
        ) from error
    if digest != _digest(text, tensors):
        raise UserError(f"checkpoint {path} does not match its digest (damaged?); {remedy}")
    meta = json.loads(text)
    if meta["cell"] != cell.hash:
        raise UserError(f"checkpoint {path} belongs to cell {meta['cell']}, not {cell.hash}; {remedy}")
    state = FederationState(meta["round"], _below("server/", tensors))
    for part in ("personal", "local"):
        for client in meta["clients"][part]:
            getattr(state, part)[client] = _below(f"{part}/{client}/", tensors)
    records = [Record(*row) for row in meta["records"]]
    logs = [RoundLog(row[0], tuple(row[1]), *row[2:]) for row in meta["logs"]]
    return Checkpoint(state, records, logs)


def _below(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _digest(text: str, tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].cpu().numpy().tobytes())
    return digest.hexdigest()


def finish(folder: Path, cell: Cell, run: Checkpoint, summary: dict[str, object], partition_hash: str) -> None:
    """Write the readable files, then the marker."""
    records = pd.DataFrame([asdict(record) for record in run.records])
    records.insert(0, "seed", cell.seed)
    records["partition"] = partition_hash[:16]
    rounds = pd.DataFrame([_row(log) for log in run.logs])
    write_atomic(folder / "records.csv", records.to_csv(index=False).encode())
    write_atomic(folder / "rounds.csv", rounds.to_csv(index=False).encode())
    write_atomic(folder / "summary.json", json.dumps(summary, indent=1, sort_keys=True).encode())
    (folder / FAILURE_NOTE).unlink(missing_ok=True)
    write_atomic(folder / DONE, b"")


def _row(log: RoundLog) -> dict[str, object]:
    row = {**asdict(log), "cohort": " ".join(map(str, log.cohort))}
    return row | {f"diagnostics/{name}": value for name, value in row.pop("diagnostics").items()}


def note_failure(folder: Path, reason: str) -> None:
    if folder.is_dir():
        write_atomic(folder / FAILURE_NOTE, json.dumps({"reason": reason}).encode())
