"""MLflow: the record that tables are built from.

One run a cell, in one experiment a data set (`fedprompt/glyph-100`), so that what the MLflow UI lists together can be
compared: group by the tag `method`, filter by `partition`, `phase` (tune or final) or `suite`. A run is found again by
its tag `cell_hash`; what is recorded twice is recorded once. Metrics named `round/...` are curves over rounds, the
others are what the tables print. Only the parent process records; workers write run folders.
"""

import csv
import fcntl
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pandas as pd

from fedprompt.harness.cells.cell import Cell, cell_from_json
from fedprompt.harness.cells.folder import is_done
from fedprompt.harness.core.files import write_atomic
from fedprompt.harness.federation.metrics import per_round, trained_reading
from fedprompt.harness.tracking.store import connect, experiment_name, first_line, is_database, public

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Metric, Run

    from fedprompt.harness.cells.run import RoundProgress

MARKER = "tracked.json"  # in a run folder: the suites it belongs to, the stores that have it
ARTIFACTS = ("cell.json", "records.csv", "rounds.csv", "summary.json", "partition.npz")
CURVES = ("loss", "average", "worst_local", "bytes_down", "bytes_up")
SEND_EVERY = 10.0  # seconds between two calls for one running cell
RETRY_AFTER = 60.0  # seconds a store that did not answer is left alone
BATCH = 1000  # MLflow's limit of metrics, parameters and tags in one call

Outcome = Literal["recorded", "present", "failed"]
T = TypeVar("T")


def default_uri(out: Path) -> str:
    return f"sqlite:///{(out / 'mlflow.db').resolve()}"


@dataclass
class _Live:
    """A running cell: rounds not yet sent, and which ones were."""

    started: float = field(default_factory=time)
    sent_at: float = field(default_factory=lambda: monotonic())
    waiting: dict[int, Mapping[str, float]] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    run: "Run | None" = None


@dataclass(frozen=True)
class _Finished:
    """A done run folder, read."""

    folder: Path
    cell: Cell
    summary: dict[str, Any]
    curves: Mapping[int, Mapping[str, float]]  # by round
    digest: str  # of the records: equal for a cell that was run twice
    ended: float

    @classmethod
    def read(cls, folder: Path) -> "_Finished":
        summary = json.loads((folder / "summary.json").read_text())
        digest = hashlib.sha256((folder / "records.csv").read_bytes() + (folder / "rounds.csv").read_bytes())
        return cls(
            folder,
            cell_from_json((folder / "cell.json").read_text()),
            summary,
            _curves(folder),
            digest.hexdigest()[:16],
            (folder / "done").stat().st_mtime,
        )

    @property
    def started(self) -> float:
        return self.ended - float(self.summary["seconds_per_round"]) * self.cell.protocol.rounds


class Tracker:
    """Records the cells of one command. A store that does not answer costs a warning, never the run."""

    def __init__(self, uri: str, out: Path, suite: str = "") -> None:
        self.uri, self.out, self.suite = uri, out, suite
        self._client: MlflowClient | None = None
        self._experiments: dict[str, Experiment] = {}
        self._live: dict[str, _Live] = {}
        self._away_until = 0.0
        self._warned = False

    def round(self, cell: Cell, progress: "RoundProgress") -> None:
        """Take in one round; it is sent with others, at most one call in ``SEND_EVERY`` seconds a cell."""
        live = self._live.setdefault(cell.hash, _Live())
        live.waiting[progress.round] = progress.metrics
        if monotonic() - live.sent_at >= SEND_EVERY:
            live.sent_at = monotonic()
            self._try(lambda: self._send(cell, live))

    def finish(self, folder: Path) -> bool:
        """Record a done run folder completely; False if the store did not take it (`sync` will)."""
        return self.record(folder) != "failed"

    def record(self, folder: Path) -> Outcome:
        finished = _Finished.read(folder)
        marker = _read_marker(folder)
        if self.suite and self.suite not in marker["suites"]:
            marker["suites"] = sorted([*marker["suites"], self.suite])
            _write_marker(folder, marker)  # also if the store is away: `sync` does not know the suite
        return self._try(lambda: self._record(finished, marker)) or "failed"

    def failed(self, cell: Cell, reason: str) -> None:
        """Record that ``cell`` stopped with an error, unless an earlier run of it is finished."""

        def send() -> bool:
            live = self._live.pop(cell.hash, _Live())
            self._send(cell, live)
            if live.run is not None and live.run.info.status != "FINISHED":
                self._store.set_tag(live.run.info.run_id, "failure", reason[:1000])
                self._store.set_terminated(live.run.info.run_id, "FAILED")
            return True

        self._try(send)

    # -- inside: everything below may raise what MLflow raises, and is called through _try -----------------------

    def _try(self, action: Callable[[], T]) -> T | None:
        """The action's answer, or None if the store is away."""
        if monotonic() < self._away_until:
            return None
        try:
            with alone(self.out):
                return action()
        except Exception as error:  # drivers and network stacks raise what they like; training must go on
            self._away_until = monotonic() + RETRY_AFTER
            if not self._warned:
                self._warned = True
                where, why = public(self.uri), public(self.uri, first_line(error))
                print(
                    f"warning: not recorded in MLflow at {where} ({why}); "
                    "runs go on, record them later with: fedprompt sync",
                    file=sys.stderr,
                )
            return None

    @property
    def _store(self) -> "MlflowClient":
        if self._client is None:
            self._client = connect(self.uri)
        return self._client

    def _experiment(self, dataset: str) -> "Experiment":
        if dataset not in self._experiments:
            name = experiment_name(dataset)
            found = self._store.get_experiment_by_name(name)
            if found is None:
                # A server has a place of its own for artifacts; a bare database has none.
                place = (self.out / "mlartifacts").resolve().as_uri() if is_database(self.uri) else None
                found = self._store.get_experiment(self._store.create_experiment(name, place))
            self._experiments[dataset] = found
        return self._experiments[dataset]

    def _group(self, cell: Cell) -> Mapping[str, str]:  # noqa: ARG002
        """Tags that say where the cell's run belongs, such as under a parent; for subclasses."""
        return {}

    def _find(self, cell: Cell) -> "Run | None":
        runs = self._store.search_runs(
            [self._experiment(cell.dataset).experiment_id], f"tags.cell_hash = '{cell.hash}'", order_by=["start_time"]
        )
        return min(runs, key=lambda run: run.info.status != "FINISHED", default=None)

    def _begun(self, cell: Cell, live: _Live) -> "Run | None":
        """The run to go on with; one whose cell was started over is given up, its rounds may come out otherwise."""
        run = self._find(cell)
        if run and run.info.status != "FINISHED" and live.run is None and 1 in live.waiting:
            self._store.delete_run(run.info.run_id)
            return None
        return run

    def _create(self, cell: Cell, started: float, suites: Iterable[str]) -> "Run":
        tags = {**_tags(cell), **self._group(cell), "suite": ", ".join(suites)}
        name = f"{cell.method} {cell.partition} seed {cell.seed}"
        experiment = self._experiment(cell.dataset).experiment_id
        return self._store.create_run(experiment, int(started * 1000), tags, name)

    def _send(self, cell: Cell, live: _Live) -> bool:
        """Send what waits; the run is created at its first call, or continued if an earlier process created it."""
        if live.run is None:
            run = self._begun(cell, live)
            if run is not None and run.info.status not in ("RUNNING", "FINISHED"):
                self._store.update_run(run.info.run_id, "RUNNING")
            live.run = run or self._create(cell, live.started, [self.suite] if self.suite else [])
        if live.run.info.status != "FINISHED":  # a finished one keeps its record until the new one is complete
            self._log(live.run, _metrics(live.run, live.waiting), _params(cell))
        live.sent |= set(live.waiting)
        live.waiting = {}
        return True

    def _record(self, finished: _Finished, marker: dict[str, Any]) -> Outcome:
        cell, suites = finished.cell, marker["suites"]
        group = self._group(cell)
        experiment = self._experiment(cell.dataset)
        # The time tells a database that was deleted and made again from the one that has the run.
        entry = {"experiment": f"{experiment.experiment_id}@{experiment.creation_time}", "suites": suites, **group}
        key = public(self.uri)
        stored = marker["stores"].get(key, {})
        if all(stored.get(name) == value for name, value in entry.items()):
            return "present"
        live = self._live.pop(cell.hash, _Live())
        run = self._begun(cell, live)
        if run and run.info.status == "FINISHED" and run.data.tags.get("records") != finished.digest:
            self._store.delete_run(run.info.run_id)  # the cell was started over and came out otherwise
            run = None
        outcome: Outcome = "present" if run and run.info.status == "FINISHED" else "recorded"
        if run is None or outcome == "recorded":
            run = run or self._create(cell, finished.started, suites)
            known = live.sent if live.run and live.run.info.run_id == run.info.run_id else set()
            rest = {round_: row for round_, row in finished.curves.items() if round_ not in known}
            numbers = {k: float(v) for k, v in finished.summary.items() if isinstance(v, int | float)}
            tags = {
                "partition_hash": finished.summary["partition_hash"],
                "data_checksum": finished.summary["data_checksum"],
                "records": finished.digest,
            }
            metrics = _metrics(run, rest) + _metrics(run, {cell.protocol.rounds: numbers}, prefix="")
            self._log(run, metrics, _params(cell), tags)
            for name in ARTIFACTS:
                if (finished.folder / name).exists():
                    self._store.log_artifact(run.info.run_id, str(finished.folder / name))
            if "failure" in run.data.tags:
                self._store.delete_tag(run.info.run_id, "failure")
            self._store.set_terminated(run.info.run_id, "FINISHED", int(finished.ended * 1000))
        for name, value in group.items():
            if run.data.tags.get(name) != value:
                self._store.set_tag(run.info.run_id, name, value)
        named = set(filter(None, run.data.tags.get("suite", "").split(", ")))
        if not named.issuperset(suites):
            self._store.set_tag(run.info.run_id, "suite", ", ".join(sorted(named.union(suites))))
        marker["stores"][key] = {**entry, "run": run.info.run_id}
        _write_marker(finished.folder, marker)
        return outcome

    def _log(
        self, run: "Run", metrics: Sequence["Metric"], params: Mapping[str, str], tags: Mapping[str, str] | None = None
    ) -> None:
        """As few calls as MLflow allows. Sending a value again changes nothing."""
        from mlflow.entities import Param, RunTag

        first = BATCH - len(params) - len(tags or {})
        self._store.log_batch(
            run.info.run_id,
            metrics[:first],
            [Param(key, value) for key, value in params.items()],
            [RunTag(key, value) for key, value in (tags or {}).items()],
        )
        for start in range(first, len(metrics), BATCH):
            self._store.log_batch(run.info.run_id, metrics[start : start + BATCH])


def sync(out: Path, uri: str) -> tuple[int, int, int]:
    """Record every done run folder of ``out`` that the store lacks: (recorded now, already there, failed)."""
    tracker = Tracker(uri, out)
    count = {"recorded": 0, "present": 0, "failed": 0}
    for folder in sorted(path for path in (out / "runs").glob("*") if is_done(path)):
        try:
            count[tracker.record(folder)] += 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"warning: {folder} cannot be read ({first_line(error)}); not recorded", file=sys.stderr)
            count["failed"] += 1
    return count["recorded"], count["present"], count["failed"]


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


def _tags(cell: Cell) -> dict[str, str]:
    return {
        "cell_hash": cell.hash,
        "method": cell.method,
        "dataset": cell.dataset,
        "partition": cell.partition,
        "seed": str(cell.seed),
        "phase": cell.phase,
        "backbone": cell.backbone.name,
        "weights": cell.backbone.weights,
        "code": cell.code,
        "git_commit": git_commit(),
        "mlflow.source.name": "fedprompt",
        "mlflow.source.git.commit": git_commit(),
    }


def _params(cell: Cell) -> dict[str, str]:
    named = {
        "method": cell.method,
        "dataset": cell.dataset,
        "partition": cell.partition,
        "seed": cell.seed,
        **{f"method.{key}": value for key, value in cell.params.items()},
        **{f"protocol.{key}": value for key, value in asdict(cell.protocol).items()},
        **{f"backbone.{key}": value for key, value in asdict(cell.backbone).items()},
    }
    return {key: str(value) for key, value in named.items()}


def _metrics(run: "Run", rows: Mapping[int, Mapping[str, float]], prefix: str = "round/") -> list["Metric"]:
    """Times count rounds, not seconds: MLflow drops a point that it has, but only if its time is the same."""
    from mlflow.entities import Metric

    return [
        Metric(prefix + name, float(value), run.info.start_time + 1000 * round_, round_)
        for round_, row in rows.items()
        for name, value in row.items()
        if (not prefix or _is_curve(name)) and not math.isnan(value)
    ]


def _is_curve(name: str) -> bool:
    return name in CURVES or name.startswith("diagnostics/")


def _curves(folder: Path) -> dict[int, dict[Any, float]]:
    """The same numbers, to the bit, that a running cell tells round by round."""
    with (folder / "rounds.csv").open(newline="") as file:
        logs = {int(row["round"]): row for row in csv.DictReader(file)}
    accuracy = per_round(trained_reading(pd.read_csv(folder / "records.csv")))
    seen = accuracy.to_dict("index")
    return {
        round_: {**{name: float(row[name]) for name in row if _is_curve(name)}, **seen.get(round_, {})}
        for round_, row in logs.items()
    }


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """One process records at a time, so that two cannot both miss a run and create it."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".tracking.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read_marker(folder: Path) -> dict[str, Any]:
    try:
        return {"suites": [], "stores": {}, **json.loads((folder / MARKER).read_text())}
    except FileNotFoundError:
        return {"suites": [], "stores": {}}


def _write_marker(folder: Path, marker: Mapping[str, Any]) -> None:
    write_atomic(folder / MARKER, json.dumps(marker, indent=1, sort_keys=True).encode())
