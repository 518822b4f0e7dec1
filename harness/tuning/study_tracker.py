"""Studies in MLflow: one parent run per study (tag `phase` = study), and under it the runs of its cells."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedprompt.core.errors import UserError
from fedprompt.harness.recording.store import connect, experiment_name, first_line, public
from fedprompt.harness.recording.tracker import Tracker
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.suite import Key, Suite
from fedprompt.harness.tuning.search import KEY_NAMES, Point, Result, Search, cell_key, chosen_result, searches
from fedprompt.methods import registry

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

PARENT = "mlflow.parentRunId"  # MLflow's own: its UI shows such runs under their parent
TABLE = "trials.csv"  # artifact of a study, one row per point: its values, then RESULT
PLACE = ("method", "title", "dataset", "partition", "head", "setting")
RESULT = ("value", "state", "chosen")


class StudyTracker(Tracker):
    """Records cells as children of their study."""

    def __init__(self, uri: str, out: Path, suite: str) -> None:
        super().__init__(uri, out, suite)
        self._origins: dict[str, tuple[Search, Point]] = {}  # by cell
        self._parents: dict[str, str] = {}  # run ids, by study

    def adopt(self, cell: Cell, search: Search, point: Point) -> None:
        """Whatever is recorded of ``cell`` from now on belongs to ``point`` of the study."""
        self._origins[cell.hash] = search, point

    def record_study(self, search: Search, results: Sequence[Result]) -> None:
        """Record how a study ended; recording it again replaces what was there. ``results`` begin with the default."""
        best, finished = chosen_result(search, results), sum(result.value is not None for result in results)
        rows = [{**search.effective(r.point), "value": r.value, "state": r.state, "chosen": r is best} for r in results]
        values = {"default_value": results[0].value, "best_value": best.score if best else None}
        metrics = {"finished": finished, "failed": len(results) - finished, **values}

        def send() -> bool:
            run_id = self._parent(search)
            for name, value in metrics.items():
                if value is not None:
                    self._store.log_metric(run_id, name, value)
            for name, value in (best.point if best else {}).items():
                self._store.set_tag(run_id, f"chosen.{name}", str(value))
            self._store.log_text(run_id, pd.DataFrame(rows).to_csv(index=False), TABLE)
            self._store.set_terminated(run_id, "FINISHED")
            return True

        self._try(send)

    def _group(self, cell: Cell) -> Mapping[str, str]:
        if cell.hash not in self._origins:
            return {}
        search, point = self._origins[cell.hash]
        values = {f"search.{name}": str(value) for name, value in point.items()}
        return {PARENT: self._parent(search), "study": search.name, **values}

    def _run_name(self, cell: Cell, variant: str) -> str:
        """Trials of a study differ in their values."""
        point = self._origins[cell.hash][1] if cell.hash in self._origins else {}
        values = (f"{name}={f'{value:.3g}' if isinstance(value, float) else value}" for name, value in point.items())
        return " ".join((super()._run_name(cell, variant), *values))

    def _parent(self, search: Search) -> str:
        if search.digest not in self._parents:
            experiment = self._experiment(search.key[1]).experiment_id
            condition = f"tags.phase = 'study' and tags.study_hash = '{search.digest}'"
            matching_runs = self._store.search_runs([experiment], condition, max_results=1)
            run_id = matching_runs[0].info.run_id if matching_runs else self._create_parent(search, experiment)
            self._parents[search.digest] = run_id
        return self._parents[search.digest]

    def _create_parent(self, search: Search, experiment: str) -> str:
        from mlflow.entities import Param

        place = dict(zip(KEY_NAMES, search.key, strict=True))
        tags = {"phase": "study", "study": search.name, "study_hash": search.digest, "suite": search.suite, **place}
        tags |= {"setup": search.setup, "code": search.base[0].code, "mlflow.source.name": "fedprompt"}
        params = {"sampler": search.sampler, "seeds": ", ".join(str(cell.seed) for cell in search.base)}
        params |= {f"grid.{name}": ", ".join(map(str, values)) for name, values in search.grid.items()}
        params |= {f"default.{name}": str(value) for name, value in search.default.items()}
        run = self._store.create_run(
            experiment, tags=tags, run_name=f"{search.base[0].label.rsplit(' s', 1)[0]} {search.key[3]} (study)"
        )
        self._store.log_batch(run.info.run_id, params=[Param(name, value) for name, value in params.items()])
        return str(run.info.run_id)


def tuning_frame(uri: str, suite: Suite) -> pd.DataFrame:
    """Every point that was tried for the suite, from MLflow alone: for accuracy over the grid.

    One row per point, in the suite's order: method, title, dataset, partition, head (its owner), setting (its label),
    each searched parameter (none where a method lacks it; a rate that follows lr has its value), value (validation
    accuracy), state (complete, diverged or failed), chosen. Studies of this suite come before equal ones of others;
    among several the last to end counts, which is the one in the tuned file.
    """
    places: dict[Key, tuple[str, str]] = {}  # title and label, of the first setting
    for planned in suite.planned():
        title = registry().get(planned.row.method).title
        places.setdefault(cell_key(planned.cell), (title, planned.setting.label))
    frames = [pd.DataFrame(columns=[*PLACE, *RESULT])]
    try:
        client = connect(uri)
        studies = _studies(client, suite, sorted({dataset for _, dataset, _, _ in places}))
        for key, (title, label) in places.items():
            if key in studies:
                table = pd.read_csv(client.download_artifacts(studies[key].info.run_id, TABLE))
                frames.append(table.assign(**dict(zip(KEY_NAMES, key, strict=True)), title=title, setting=label))
    except Exception as error:  # as in Tracker: whatever is below MLflow
        raise UserError(
            f"MLflow at {public(uri)} cannot be read ({public(uri, first_line(error))}); check --tracking-uri."
        ) from error
    frame = pd.concat(frames[1:] or frames, ignore_index=True)
    searched = [name for name in frame if name not in (*PLACE, *RESULT)]
    return frame[[*PLACE, *searched, *RESULT]]


def _studies(client: "MlflowClient", suite: Suite, datasets: Sequence[str]) -> "dict[Key, Run]":
    """The study of each key that ended last; version 0.1.0 did not record the head."""
    runs: list[Run] = []
    for dataset in datasets:
        experiment = client.get_experiment_by_name(experiment_name(dataset))
        if experiment is not None:
            runs += client.search_runs([experiment.experiment_id], "tags.phase = 'study'", max_results=10_000)
    setups = {search.setup for search in searches(suite)}

    def belongs(run: "Run") -> bool:
        return run.data.tags.get("suite") == suite.name

    ended = [run for run in runs if belongs(run) or run.data.tags.get("setup") in setups]
    ended = [run for run in ended if run.info.status == "FINISHED"]
    by_key: dict[Key, Run] = {}
    for run in sorted(ended, key=lambda run: (belongs(run), run.info.end_time)):
        tags = run.data.tags
        by_key[tags["method"], tags["dataset"], tags["partition"], tags.get("head", "")] = run
    return by_key
