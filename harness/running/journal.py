"""What a run has computed so far, in files that grow: a checkpoint costs what changed in its round.

    records.csv, rounds.csv  one block of rows per round
    scores.gz                one gzip member per reported round
    checkpoint.journal       one entry per round: the states that the round changed, the sizes and digests of the tables

An entry follows the rows that it counts. Whatever stands behind the last whole entry was being written when the process
ended; it is cut off, and the round is computed again to the same bits. When later entries outweigh the first, one entry
with the state of every client takes their place, so that a journal stays below twice what it holds.
"""

import csv
import hashlib
import io
import json
import os
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import safetensors.torch
import torch

from fedprompt.core.errors import UserError
from fedprompt.core.files import write_atomic
from fedprompt.harness.federation.rounds import FederationState, RoundLog
from fedprompt.harness.federation.training import stack_states, unstack_state
from fedprompt.harness.measuring.evaluation import Record
from fedprompt.harness.measuring.metrics import RECORD_COLUMNS
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.folder import REMEDY
from fedprompt.methods import State

CHECKPOINT, RECORDS, ROUNDS, SCORES = "checkpoint.journal", "records.csv", "rounds.csv", "scores.gz"
PARTS = ("personal", "local")  # of a federation's state: what it holds of each client
HEAD = struct.Struct("<32sQ")  # of an entry: SHA-256 and length of what follows
CHUNK = 1 << 20


class Table:
    """A file that grows. What it held when ``digest`` was taken is verified; what came after is cut off."""

    def __init__(self, path: Path, size: int = 0, digest: str = hashlib.sha256().hexdigest()) -> None:
        self.path, self.size, self._hash = path, size, hashlib.sha256()
        with path.open("a+b") as file:
            file.seek(0)
            for start in range(0, size, CHUNK):
                self._hash.update(file.read(min(CHUNK, size - start)))
            self._verify(digest)
            file.truncate(size)

    def append(self, content: bytes) -> None:
        if content:
            with self.path.open("ab") as file:
                _write(file, content)
            self.size += len(content)
            self._hash.update(content)

    @property
    def mark(self) -> tuple[int, str]:
        return self.size, self._hash.hexdigest()

    def header(self) -> list[str]:
        with self.path.open(newline="") as file:
            return next(csv.reader(file), [])

    def read(self) -> pd.DataFrame:
        content = self.path.read_bytes()
        self._verify(hashlib.sha256(content).hexdigest())
        return pd.read_csv(io.BytesIO(content), dtype={"partition": str}, keep_default_na=False)

    def _verify(self, digest: str) -> None:
        if self._hash.hexdigest() != digest:
            raise UserError(f"{self.path} does not match its digest (damaged?); {REMEDY}")


class Journal:
    """The run in ``folder`` as far as it got: ``state`` and ``log`` of its last round, if there is one."""

    def __init__(
        self, folder: Path, cell: Cell, partition_hash: str, data_checksum: str, device: str | torch.device = "cpu"
    ) -> None:
        self.path, self.seed, self.partition_hash = folder / CHECKPOINT, cell.seed, partition_hash
        self._identity = {"cell": cell.hash, "data": data_checksum}
        self.state: FederationState | None = None
        self.log: RoundLog | None = None
        self._size = self._first = 0  # bytes of the journal, and of its first entry
        marks: Mapping[str, Sequence[Any]] = {}
        for meta, tensors in self._entries():
            self._apply(meta, tensors, device)
            marks = meta["tables"]
        self._cut()
        self.records, self.rounds, self.scores = (
            Table(folder / name, *marks.get(name, ())) for name in (RECORDS, ROUNDS, SCORES)
        )

    def append(self, state: FederationState, log: RoundLog, records: Iterable[Record], scores: bytes = b"") -> None:
        """Keep the round that ``log`` describes; ``state`` is that after it, ``scores`` is packed."""
        self.records.append(record_rows(records, self.seed, self.partition_hash, header=not self.records.size))
        self.rounds.append(round_rows([log], self.rounds.header()))
        self.scores.append(scores)
        whole = len(log.cohort) == len(state.personal)
        entry = self._pack(state, log, log.cohort)
        if not whole and self._size + len(entry) > 2 * self._first:
            whole, entry = True, self._pack(state, log, state.personal)
        if whole:
            write_atomic(self.path, entry)
            self._size = self._first = len(entry)
        else:
            with self.path.open("ab") as file:
                _write(file, entry)
            self._size += len(entry)
        self.state, self.log = state, log

    def _pack(self, state: FederationState, log: RoundLog, clients: Iterable[int]) -> bytes:
        """States of clients are stacked: a name for each tensor of each client would make the header grow with them."""
        tensors = {f"server/{name}": tensor for name, tensor in state.server.items()}
        tensors |= {f"optimiser/{name}": tensor for name, tensor in state.optimiser.items()}
        holders = {part: [c for c in clients if c in getattr(state, part)] for part in PARTS}
        for part, ids in holders.items():
            stacked = stack_states([getattr(state, part)[client] for client in ids]) if ids else {}
            tensors |= {f"{part}/{name}": tensor for name, tensor in stacked.items()}
        meta = {
            **self._identity,
            "round": state.round,
            "clients": holders,
            "tables": {RECORDS: self.records.mark, ROUNDS: self.rounds.mark, SCORES: self.scores.mark},
            "log": asdict(log),
        }
        tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
        content: bytes = safetensors.torch.save(tensors, {"run": json.dumps(meta)})
        return HEAD.pack(hashlib.sha256(content).digest(), len(content)) + content

    def _entries(self) -> Iterator[tuple[dict[str, Any], State]]:
        """Every whole entry, in order. The first came by renaming, so it is whole unless the file was damaged."""
        if not self.path.exists():
            return
        total = self.path.stat().st_size
        with self.path.open("rb") as file:
            while (content := self._read(file, total)) is not None:
                self._size = file.tell()
                self._first = self._first or self._size
                length = int.from_bytes(content[:8], "little")  # of the header, in the format of safetensors
                meta = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["run"])
                self._require_own(meta)
                yield meta, safetensors.torch.load(content)

    def _read(self, file: BinaryIO, total: int) -> bytes | None:
        """The next entry; None at the end and where the last one was not written to its end."""
        head = file.read(HEAD.size)
        digest, length = HEAD.unpack(head) if len(head) == HEAD.size else (b"", total)
        end = file.tell() + length
        if end <= total:
            content = file.read(length)
            if hashlib.sha256(content).digest() == digest:
                return content
        if not self._size or end < total:
            raise UserError(f"checkpoint {self.path} does not match its digest (damaged?); {REMEDY}")
        return None

    def _require_own(self, meta: Mapping[str, Any]) -> None:
        if meta["cell"] != self._identity["cell"]:
            raise UserError(
                f"checkpoint {self.path} belongs to cell {meta['cell']}, not {self._identity['cell']}; {REMEDY}"
            )
        if meta["data"] != self._identity["data"]:
            raise UserError(
                f"checkpoint {self.path} was begun with other data (checksum {meta['data'][:12]}, now "
                f"{self._identity['data'][:12]}); restore the data, or {REMEDY}"
            )

    def _apply(self, meta: Mapping[str, Any], tensors: State, device: str | torch.device) -> None:
        tensors = {name: tensor.to(device) for name, tensor in tensors.items()}
        state = self.state = self.state or FederationState(0, {})
        state.round, state.server = meta["round"], _below("server/", tensors)
        state.optimiser = _below("optimiser/", tensors)
        for part in PARTS:
            stacked = _below(f"{part}/", tensors)
            clients = enumerate(meta["clients"][part])
            getattr(state, part).update({client: unstack_state(stacked, place) for place, client in clients})
        self.log = RoundLog(**{**meta["log"], "cohort": tuple(meta["log"]["cohort"])})

    def _cut(self) -> None:
        if self.path.exists():
            os.truncate(self.path, self._size)


def record_rows(records: Iterable[Record], seed: int, partition_hash: str, header: bool) -> bytes:
    rows = [(seed, *record, partition_hash[:16]) for record in records]
    return _csv([("seed", *RECORD_COLUMNS, "partition"), *rows] if header and rows else rows)


def round_rows(logs: Iterable[RoundLog], header: Sequence[str] = ()) -> bytes:
    """Rows of rounds.csv; the first ones, without a ``header`` so far, begin with it."""
    rows = [_row(log) for log in logs]
    columns = list(header or rows[0])
    for row in rows:
        if list(row) != columns:
            raise UserError(
                f"round {row['round']} logs {', '.join(row)}, earlier rounds logged {', '.join(columns)}: "
                "a method's diagnostics must have the same names in every round."
            )
    return _csv([*([] if header else [columns]), *(row.values() for row in rows)])


def _row(log: RoundLog) -> dict[str, object]:
    row = {**vars(log), "cohort": " ".join(map(str, log.cohort))}
    return row | {f"diagnostics/{name}": value for name, value in row.pop("diagnostics").items()}


def _csv(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _write(file: BinaryIO, content: bytes) -> None:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())  # an entry must not reach the disk before the rows that it counts


def _below(prefix: str, tensors: State) -> State:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
