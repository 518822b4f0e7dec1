"""MLflow: the record that tables are built from.

There is one run per cell, in one experiment per data set (`fedprompt/glyph-100`), so that what the MLflow UI lists
together can be compared: group by the tag `method`, filter by `partition`, `phase` (tune or final) or `suite`. A run is
found again by its tag `cell_hash`; recording the same run twice has no effect. Metrics named `round/...` are curves
over rounds, the others are what the tables print. Only the parent process records; workers write run folders.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic, time
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeVar

from fedprompt.harness.federation.rounds import failure_state
from fedprompt.harness.recording.contents import (
    ARTIFACTS,
    FinishedRun,
    Row,
    cell_params,
    cell_tags,
    curve_metrics,
    dataset_input,
    final_metrics,
)
from fedprompt.harness.recording.marker import MAIN, Marker, StoreEntry
from fedprompt.harness.recording.store import (
    connect,
    experiment_name,
    first_line,
    is_database,
    is_refusal,
    make_database,
    public,
    tracking_lock,
)
from fedprompt.harness.recording.view import view_tags
from fedprompt.harness.running.cell import Cell, cell_from_json
from fedprompt.harness.running.folder import REMEDY, is_done, run_folder

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Metric, Run

    from fedprompt.harness.running.run import RoundProgress

SEND_EVERY = 10.0  # seconds between two calls for one running cell
RETRY_AFTER = 60.0  # seconds a store that did not answer is left alone
BATCH = 1000  # MLflow's limit of metrics, parameters and tags in one call

Recorded = Literal["recorded", "present", "failed"]
T = TypeVar("T")


def default_uri(out: Path) -> str:
    """The database in a results folder, which is used unless another place is named."""
    return f"sqlite:///{(out / 'mlflow.db').resolve()}"


@dataclass
class _Live:
    """A running cell: rounds not yet sent, and which ones were."""

    started: float = field(default_factory=time)
    sent_at: float = field(default_factory=lambda: monotonic())
    waiting: dict[int, Row] = field(default_factory=dict)
    sent: set[int] = field(default_factory=set)
    run: "Run | None" = None


class Tracker:
    """Records the cells of one command. A store that does not answer costs a warning, never the run."""

    def __init__(
        self,
        uri: str,
        out: Path,
        suite: str = "",
        restarted: Collection[str] = (),
        variants: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``restarted`` has the hashes of cells whose earlier results are unwanted, also if they fail now.

        ``variants`` names the cells that only ablations show, by hash, so that they are not taken for their method.
        """
        self.uri, self.out, self.suite, self._restarted, self._variants = uri, out, suite, restarted, variants
        self._client: MlflowClient | None = None
        self._experiments: dict[str, Experiment] = {}
        self._live: dict[str, _Live] = {}
        self._away_until = 0.0
        self._warned = False
        self._refused: set[str] = set()

    def round(self, cell: Cell, progress: "RoundProgress") -> None:
        """Take in one round; rounds are sent together, at most one call per cell in ``SEND_EVERY`` seconds."""
        live = self._live.setdefault(cell.hash, _Live())
        live.waiting[progress.round] = progress.metrics
        if monotonic() - live.sent_at >= SEND_EVERY:
            live.sent_at = monotonic()
            self._try(lambda: self._send(cell, live), cell)

    def finish(self, folder: Path) -> bool:
        """Record a done run folder completely; False if the store did not take it (`sync` will)."""
        return self.record(folder) != "failed"

    def record(self, folder: Path) -> Recorded:
        """Record a done run folder completely: `recorded` now, `present` before, or `failed` (`sync` will do it)."""
        try:
            cell, marker = cell_from_json((folder / "cell.json").read_text()), Marker.read(folder)
            self._mark(cell, marker, folder)
            if self._try(lambda: self._is_present(cell, marker), cell):
                return "present"
            finished = FinishedRun.read(folder)
        except (OSError, ValueError, KeyError, TypeError) as error:
            _warn(f"{folder} cannot be read ({first_line(error)}); not recorded. {REMEDY}")
            return "failed"
        return self._try(lambda: self._record(finished, marker), cell) or "failed"

    def _mark(self, cell: Cell, marker: Marker, folder: Path) -> None:
        """Note what only this command knows, also if the store is away: `sync` does not know the suite."""
        variant = MAIN if marker.variant == MAIN else self._variants.get(cell.hash, MAIN)
        if self.suite and (self.suite not in marker.suites or variant != marker.variant):
            marker.suites, marker.variant = sorted({*marker.suites, self.suite}), variant
            _write(marker, folder)

    def failed(self, cell: Cell, reason: str) -> None:
        """Record that ``cell`` stopped with an error, unless an earlier run of it is finished."""
        discarded = cell.hash in self._restarted and not is_done(run_folder(self.out, cell))

        def send() -> bool:
            live = self._live.pop(cell.hash, _Live())
            run = self._send(cell, live)
            if discarded and _is_finished(run):
                self._store.delete_run(run.info.run_id)
                run = self._create(cell, live.started, [self.suite] if self.suite else [])
            if not _is_finished(run):
                self._store.set_tag(run.info.run_id, "failure", reason[:1000])
                self._store.set_tag(run.info.run_id, "ended", failure_state(reason))
                self._store.set_terminated(run.info.run_id, "FAILED")
            return True

        self._try(send, cell)

    # -- inside: everything below may raise what MLflow raises, and is called through _try -----------------------

    def _try(self, action: Callable[[], T], cell: Cell | None = None) -> T | None:
        """The action's answer, or None if the store refused it, which concerns ``cell`` alone, or is away."""
        if monotonic() < self._away_until:
            return None
        try:
            with tracking_lock(self.out):
                return action()
        except Exception as error:  # drivers and network stacks raise what they like; training must go on
            where, why = public(self.uri), public(self.uri, first_line(error))
            if is_refusal(error):
                what = f"{cell.label} ({cell.hash})" if cell else "a study"
                if what not in self._refused:
                    self._refused.add(what)
                    _warn(f"MLflow at {where} refused {what}: {why}")
                return None
            self._away_until = monotonic() + RETRY_AFTER
            if not self._warned:
                self._warned = True
                _warn(f"not recorded in MLflow at {where} ({why}); runs go on, record them later with: fedprompt sync")
            return None

    @property
    def _store(self) -> "MlflowClient":
        if self._client is None:
            make_database(self.uri)
            self._client = connect(self.uri)
        return self._client

    def _experiment(self, dataset: str) -> "Experiment":
        if dataset not in self._experiments:
            name = experiment_name(dataset)
            experiment = self._store.get_experiment_by_name(name)
            if experiment is None:
                # A server has its own place for artifacts; a bare database has none.
                place = (self.out / "mlartifacts").resolve().as_uri() if is_database(self.uri) else None
                experiment = self._create_experiment(name, place)
            for key, value in view_tags().items():
                if experiment.tags.get(key) != value:
                    self._store.set_experiment_tag(experiment.experiment_id, key, value)
            self._experiments[dataset] = experiment
        return self._experiments[dataset]

    def _create_experiment(self, name: str, place: str | None) -> "Experiment":
        try:
            return self._store.get_experiment(self._store.create_experiment(name, place))
        except Exception:
            experiment = self._store.get_experiment_by_name(name)
            if experiment is None:
                raise
            return experiment  # the request was repeated after a time-out: it had been created

    def _group(self, cell: Cell) -> Mapping[str, str]:  # noqa: ARG002
        """Tags that say where the cell's run belongs, such as under a parent; for subclasses."""
        return {}

    def _run_name(self, cell: Cell, variant: str) -> str:
        return cell.label if variant == MAIN else cell.named(variant)

    def _find(self, cell: Cell) -> "Run | None":
        """The run of the cell, the finished one where there are several.

        Others that never ended come from a request that was repeated after a time-out; they are deleted.
        """
        runs = self._store.search_runs(
            [self._experiment(cell.dataset).experiment_id], f"tags.cell_hash = '{cell.hash}'", order_by=["start_time"]
        )
        ordered = sorted(runs, key=lambda run: not _is_finished(run))
        for run in ordered[1:]:
            if run.info.status == "RUNNING":
                self._store.delete_run(run.info.run_id)
        return ordered[0] if ordered else None

    def _begun(self, cell: Cell, live: _Live) -> "Run | None":
        """The run to go on with; that of a cell started over is deleted, because its rounds may come out otherwise."""
        run = self._find(cell)
        if run and not _is_finished(run) and live.run is None and 1 in live.waiting:
            self._store.delete_run(run.info.run_id)
            return None
        return run

    def _create(self, cell: Cell, started: float, suites: Iterable[str]) -> "Run":
        variant = self._variants.get(cell.hash, MAIN)
        tags = {**cell_tags(cell), **self._group(cell), "suite": ", ".join(suites), "variant": variant}
        name = self._run_name(cell, variant)
        experiment = self._experiment(cell.dataset).experiment_id
        return self._store.create_run(experiment, int(started * 1000), tags, name)

    def _send(self, cell: Cell, live: _Live) -> "Run":
        """Send what waits; the run is created at its first call, or continued if an earlier process created it."""
        if live.run is None:
            begun = self._begun(cell, live)
            if begun is not None and begun.info.status not in ("RUNNING", "FINISHED"):
                self._store.update_run(begun.info.run_id, "RUNNING")
            live.run = begun or self._create(cell, live.started, [self.suite] if self.suite else [])
        if not _is_finished(live.run):  # a finished one keeps its record until the new one is complete
            self._log(live.run, curve_metrics(live.run, live.waiting), cell_params(cell))
        live.sent |= set(live.waiting)
        live.waiting = {}
        return live.run

    def _entry(self, cell: Cell, marker: Marker) -> StoreEntry:
        experiment = self._experiment(cell.dataset)
        # The time tells a database that was deleted and made again from the one that has the run.
        identity = f"{experiment.experiment_id}@{experiment.creation_time}"
        return StoreEntry(identity, tuple(marker.suites), dict(self._group(cell)), variant=marker.variant or MAIN)

    def _is_present(self, cell: Cell, marker: Marker) -> bool:
        stored = marker.stores.get(public(self.uri))
        return stored is not None and replace(stored, run="") == self._entry(cell, marker)

    def _record(self, finished: FinishedRun, marker: Marker) -> Recorded:
        cell, key, entry = finished.cell, public(self.uri), self._entry(finished.cell, marker)
        live = self._live.pop(cell.hash, _Live())
        run = self._begun(cell, live)
        if run and _is_finished(run) and run.data.tags.get("records") != finished.digest:
            self._store.delete_run(run.info.run_id)  # the cell was started over and came out otherwise
            run = None
        answer: Recorded = "present"
        if run is None or not _is_finished(run):
            run = run or self._create(cell, finished.started, entry.suites)
            self._complete(run, finished, live)
            answer = "recorded"
        self._label(run, entry, self._run_name(cell, entry.variant))
        marker.stores[key] = replace(entry, run=run.info.run_id)
        _write(marker, finished.folder)
        return answer

    def _complete(self, run: "Run", finished: FinishedRun, live: _Live) -> None:
        """Send all that the run lacks and end it."""
        sent_rounds = live.sent if live.run and live.run.info.run_id == run.info.run_id else set()
        missing_rounds = {round_: row for round_, row in finished.curves.items() if round_ not in sent_rounds}
        metrics = curve_metrics(run, missing_rounds) + final_metrics(run, finished)
        self._log(run, metrics, cell_params(finished.cell), finished.tags)
        self._store.log_inputs(run.info.run_id, [dataset_input(finished)])
        for name in ARTIFACTS:
            if (finished.folder / name).exists():
                self._store.log_artifact(run.info.run_id, str(finished.folder / name))
        for name in {"failure", "ended"} & run.data.tags.keys():
            self._store.delete_tag(run.info.run_id, name)
        self._store.set_terminated(run.info.run_id, "FINISHED", int(finished.ended * 1000))

    def _label(self, run: "Run", entry: StoreEntry, run_name: str) -> None:
        """What a finished run may still get: its group, further suites, another variant and so another name."""
        if run.info.run_name != run_name:
            self._store.update_run(run.info.run_id, name=run_name)
        for name, value in {**entry.group, "variant": entry.variant}.items():
            if run.data.tags.get(name) != value:
                self._store.set_tag(run.info.run_id, name, value)
        known_suites = set(filter(None, run.data.tags.get("suite", "").split(", ")))
        if not known_suites.issuperset(entry.suites):
            self._store.set_tag(run.info.run_id, "suite", ", ".join(sorted(known_suites.union(entry.suites))))

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
    counts: dict[Recorded, int] = {"recorded": 0, "present": 0, "failed": 0}
    for folder in sorted(path for path in (out / "runs").glob("*") if is_done(path)):
        counts[tracker.record(folder)] += 1
    return counts["recorded"], counts["present"], counts["failed"]


def _write(marker: Marker, folder: Path) -> None:
    """Without its marker a run is looked up again; that is all."""
    try:
        marker.write(folder)
    except OSError as error:
        _warn(f"{folder} cannot be written to ({error.strerror})")


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _is_finished(run: "Run") -> bool:
    return bool(run.info.status == "FINISHED")
