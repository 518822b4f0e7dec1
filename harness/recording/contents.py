"""What of a cell and of its run folder goes to MLflow: tags, parameters, metrics and files."""

import csv
import hashlib
import json
import math
import posixpath
import re
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedprompt.datasets import short_name
from fedprompt.harness.measuring.metrics import per_round, trained_reading
from fedprompt.harness.running.cell import Cell, cell_from_json
from fedprompt.harness.running.folder import damaged_file

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput, Metric, Run

ARTIFACTS = ("cell.json", "records.csv", "rounds.csv", "scores.gz", "summary.json", "partition.npz")
DIGEST = 16  # digits of a checksum that MLflow shows
CURVES = ("loss", "average", "worst_local", "bytes_down", "bytes_up")

LONGEST = 250  # characters of a metric's name

Row = Mapping[str, float]


@dataclass(frozen=True)
class FinishedRun:
    """A done run folder, read."""

    folder: Path
    cell: Cell
    summary: dict[str, Any]
    curves: Mapping[int, Row]  # by round
    digest: str  # of the records: equal for a cell that was run twice
    ended: float

    @classmethod
    def read(cls, folder: Path) -> "FinishedRun":
        """Raises ValueError if a file of the folder is damaged."""
        if damaged := damaged_file(folder):
            raise ValueError(f"{damaged} is not what the finished run wrote")
        summary = json.loads((folder / "summary.json").read_text())
        digest = hashlib.sha256((folder / "records.csv").read_bytes() + (folder / "rounds.csv").read_bytes())
        return cls(
            folder,
            cell_from_json((folder / "cell.json").read_text()),
            summary,
            read_curves(folder),
            digest.hexdigest()[:16],
            (folder / "done").stat().st_mtime,
        )

    @property
    def started(self) -> float:
        """Seconds since the epoch, as far as the mean time of a round tells."""
        return self.ended - float(self.summary["seconds_per_round"]) * self.cell.protocol.rounds

    @property
    def numbers(self) -> Row:
        """What the tables print."""
        return {name: float(value) for name, value in self.summary.items() if isinstance(value, int | float)}

    @property
    def tags(self) -> dict[str, str]:
        """Tags that are known only at the end."""
        hashes = {name: str(self.summary[name]) for name in ("partition_hash", "data_checksum")}
        return {**hashes, "records": self.digest}


def cell_tags(cell: Cell) -> dict[str, str]:
    """Tags that are known before a cell runs: what runs are searched and grouped by."""
    return {
        "cell_hash": cell.hash,
        "method": cell.method,
        "dataset": cell.dataset,
        "partition": cell.partition,
        "seed": str(cell.seed),
        "phase": cell.phase,
        "head": cell.protocol.head,
        "backbone": cell.backbone.name,
        "weights": cell.backbone.weights,
        "code": cell.code,
        "cell_setup": cell.setup,
        "git_commit": git_commit(),
        "mlflow.source.name": "fedprompt",
        "mlflow.source.git.commit": git_commit(),
    }


def cell_params(cell: Cell) -> dict[str, str]:
    """What MLflow lists as parameters: fields of the cell, and of its parts with the part's name before them."""
    values = {
        "method": cell.method,
        "dataset": cell.dataset,
        "partition": cell.partition,
        "seed": cell.seed,
        **{f"method.{key}": value for key, value in cell.params.items()},
        **{f"protocol.{key}": value for key, value in asdict(cell.protocol).items()},
        **{f"backbone.{key}": value for key, value in asdict(cell.backbone).items()},
    }
    return {key: str(value) for key, value in values.items()}


def curve_metrics(run: "Run", rows: Mapping[int, Row]) -> list["Metric"]:
    """Points of the curves `round/...`; ``rows`` are by round."""
    curves = {round_: {name: value for name, value in row.items() if _is_curve(name)} for round_, row in rows.items()}
    return _metrics(run, curves, "round/")


def final_metrics(run: "Run", finished: FinishedRun) -> list["Metric"]:
    """The numbers that tables print, as points at the last round."""
    return _metrics(run, {finished.cell.protocol.rounds: finished.numbers})


def dataset_input(finished: FinishedRun) -> "DatasetInput":
    """The data set as MLflow lists them; its digest is the beginning of the checksum."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    cell, checksum = finished.cell, str(finished.summary["data_checksum"])
    source = json.dumps({"dataset": cell.dataset, "partition": cell.partition, "checksum": checksum})
    dataset = Dataset(short_name(cell.dataset), checksum[:DIGEST], "fedprompt", source)
    return DatasetInput(dataset, [InputTag("mlflow.data.context", "training and evaluation")])


def _metrics(run: "Run", rows: Mapping[int, Row], prefix: str = "") -> list["Metric"]:
    """Times count rounds, not seconds: MLflow drops a point that it has, but only if its time is the same."""
    from mlflow.entities import Metric

    return [
        Metric(accepted_name(prefix + name), float(value), run.info.start_time + 1000 * round_, round_)
        for round_, row in rows.items()
        for name, value in row.items()
        if not math.isnan(value)
    ]


def accepted_name(name: str) -> str:
    """``name`` as MLflow accepts it, since a method may call its numbers anything. Changed names stay different."""
    allowed = re.sub(r"[^\w./: -]", "_", name)
    if posixpath.normpath(allowed) != allowed or allowed.startswith(("/", "..")):
        allowed = re.sub(r"[./]", "_", allowed)
    changed = allowed != name or len(name) > LONGEST
    return f"{allowed[: LONGEST - 5]}-{hashlib.sha256(name.encode()).hexdigest()[:4]}" if changed else name


def read_curves(folder: Path) -> dict[int, Row]:
    """The same numbers, to the bit, that a running cell reports round by round."""
    with (folder / "rounds.csv").open(newline="") as file:
        logs = {int(row["round"]): row for row in csv.DictReader(file)}
    accuracy: Any = per_round(trained_reading(pd.read_csv(folder / "records.csv"))).to_dict("index")
    return {
        round_: {**{name: float(row[name]) for name in row if _is_curve(name)}, **accuracy.get(round_, {})}
        for round_, row in logs.items()
    }


def _is_curve(name: str) -> bool:
    return name in CURVES or name.startswith("diagnostics/")


@cache
def git_commit() -> str:
    """The commit of this code, with `-dirty` where files differ from it; empty for an installed package."""
    here = Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], capture_output=True, check=True)
        describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(describe, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
