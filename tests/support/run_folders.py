"""Finished run folders and MLflow stores for the tests of tracking and report, made in milliseconds."""

import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.harness.federation.rounds import RoundLog
from fedprompt.harness.measuring.evaluation import Record
from fedprompt.harness.measuring.metrics import records_frame, summarise
from fedprompt.harness.recording.store import connect
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.folder import finish, open_folder, run_folder
from fedprompt.harness.running.journal import RECORDS, ROUNDS, record_rows, round_rows

TOTAL = 1000  # test images of a client
BACKBONE = BackboneSpec("micro-vit", "random", 32)


def a_cell(method: str = "fedvpt", partition: str = "domains:m=1", seed: int = 0, **protocol: Any) -> Cell:
    return make_cell(method, "glyph-domains", partition, BACKBONE, seed, protocol={"rounds": 3, "last": 2, **protocol})


def done_folder(
    out: Path,
    cell: Cell,
    accuracies: Sequence[Sequence[float]] | None = None,
    never: Sequence[int] = (),
    extra: Sequence[Record] = (),
) -> Path:
    """A folder as `run_cell` leaves it, from one accuracy per round and client; ``never`` took part in no round."""
    table = accuracies or [[0.25, 0.75]] * cell.protocol.rounds
    records = [
        Record(round_, client, "photo", round(accuracy * TOTAL), TOTAL, client not in never, policy=cell.protocol.head)
        for round_, row in enumerate(table, start=1)
        for client, accuracy in enumerate(row)
    ]
    records += extra
    logs = [RoundLog(r, (0, 1), 1 / r, 200, 100, 800, 400, {"kl": 2.0 * r}) for r in range(1, len(table) + 1)]
    rules, folder = cell.protocol, run_folder(out, cell)
    summary = {
        **summarise(records_frame(records), rules.rounds, rules.last, rules.never_sampled),
        "floats_down": 100.0,
        "floats_up": 50.0,
        "seconds_per_round": 0.5,
        "partition_hash": "0123456789abcdef",
        "data_checksum": "glyphs",
        "environment": {"torch": "2"},
    }
    with open_folder(folder, cell):
        (folder / RECORDS).write_bytes(record_rows(records, cell.seed, "0123456789abcdef", header=True))
        (folder / ROUNDS).write_bytes(round_rows(logs))
        finish(folder, summary)
    return folder


def new_store(folder: Path) -> str:
    """The URI of an empty MLflow database; migrating a fresh one takes seconds, copying a migrated one does not."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(_template()[1], folder / "mlflow.db")
    return f"sqlite:///{folder / 'mlflow.db'}"


@cache
def _template() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    keep = tempfile.TemporaryDirectory()
    path = Path(keep.name) / "template.db"
    connect(f"sqlite:///{path}").search_experiments()
    return keep, path
