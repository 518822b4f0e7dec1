"""A suite to tune in the tests, and a bench that trains nothing."""

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import optuna
import pytest

from fedprompt.harness.running import session as session_module
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.execution import CellOutcome
from fedprompt.harness.running.executors import attempt as attempt_module
from fedprompt.harness.running.folder import is_done, open_folder
from fedprompt.harness.running.suite import Suite
from fedprompt.harness.running.suite_file import parse_suite
from fedprompt.harness.tuning import tune as tune_module
from fedprompt.harness.tuning.search import Search, searches
from fedprompt.harness.tuning.study import Study, open_storage
from fedprompt.harness.tuning.study_tracker import StudyTracker
from fedprompt.harness.tuning.tuned import tuned_path
from support import run_folders
from support.run_folders import BACKBONE, done_folder

Act = Callable[[Cell], str]  # why a cell fails, if it does
KEY = ("fedvpt", "glyph-domains", "domains:m=2", "local")
RATES = {"lr": [0.03, 0.1, 0.3], "head_lr": []}  # one axis


def a_suite(**changes: Any) -> Suite:
    raw = {
        "methods": ["fedvpt"],
        "seeds": [0, 1],
        "backbone": "micro-vit",
        "params": {"all": {"lr": 0.1}},
        "tune": {"seeds": [100, 101], "trials": 3, "grid": RATES, "protocol": {"rounds": 2}},
        "settings": [{"table": "T", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [2]}],
    }
    return dataclasses.replace(parse_suite("mini", raw | changes), backbone=BACKBONE)


def tune(**changes: Any) -> dict[str, Any]:
    """The suite's table [tune]."""
    return {"tune": {"seeds": [100], "trials": 3, "grid": RATES} | changes}


def only_search(suite: Suite, **options: Any) -> Search:
    [search] = searches(suite, **options)
    return search


class Untracked(StudyTracker):
    """Where MLflow is not the point."""

    def _try(self, action: Callable[[], Any], cell: Cell | None = None) -> None:  # noqa: ARG002
        return None


class Bench:
    """A results folder, and cells that end at once with the accuracy ``accuracy[lr, seed]`` or ``accuracy[lr]``."""

    def __init__(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = out
        self.ran: list[tuple[float, int]] = []  # learning rate and seed of each cell
        self.accuracy: dict[Any, float] = {0.03: 0.2, 0.1: 0.5, 0.3: 0.7}
        self.act: Act = lambda _: ""
        out.mkdir(exist_ok=True)
        shutil.copy(_template()[1], out / "optuna.db")
        self.storage = open_storage(f"sqlite:///{out}/optuna.db", out)
        monkeypatch.setattr(tune_module, "execute", self.execute)
        monkeypatch.setattr(tune_module, "POLL", 0.01)
        monkeypatch.setattr(session_module, "data_checksum", lambda *_: "")  # no data are loaded

    def execute(self, cells: Sequence[Cell], environment: RunEnvironment, *_: Any) -> Iterator[CellOutcome]:
        for cell in cells:
            self.ran.append((cell.params["lr"], cell.seed))
            error = self.act(cell)
            folder = environment.out / "nowhere" if error else self.finish(cell)
            yield CellOutcome(cell, folder, error)

    def finish(self, cell: Cell) -> Path:
        """The run folder of the cell, done."""
        rate = cell.params["lr"]
        accuracy = self.accuracy.get((rate, cell.seed), self.accuracy.get(rate, 0.4))
        return done_folder(self.out, cell, [[accuracy] * 2] * cell.protocol.rounds)

    def tune(self, suite: Suite, sampler: str = "pattern", uri: str = "", workers: int = 1) -> list[Study]:
        studies = [self.study(search) for search in searches(suite, sampler)]
        tracker = StudyTracker(uri, self.out, suite.name) if uri else Untracked("", self.out, suite.name)
        path = tuned_path(suite, self.out)
        tune_module.tune(studies, RunEnvironment(self.out), tracker, path, workers, lambda *_: None, lambda *_: None)
        return studies

    def study(self, search: Search) -> Study:
        return Study(search, self.storage, self.out)

    def trials(self, search: Search) -> list[tuple[float, str]]:
        return recorded_trials(search, self.storage)

    @property
    def rates(self) -> list[float]:
        return [rate for rate, _ in self.ran]


def recorded_trials(search: Search, storage: optuna.storages.RDBStorage | str) -> list[tuple[float, str]]:
    """Learning rate and state of each trial in Optuna's database."""
    study = optuna.load_study(study_name=search.name, storage=storage)
    return [(trial.params["lr"], trial.state.name) for trial in study.trials]


def tune_beside_others(out: Path, log: Path, seconds: float, url: str = "") -> None:
    """For a process of its own: tune with cells that log their hash, then last ``seconds``."""
    run_folders.open_folder = partial(_slow_folder, log, seconds)
    attempt_module.run_cell = lambda cell, environment, *_: done_folder(environment.out, cell)
    tune_module.POLL = 0.1
    session_module.data_checksum = lambda *_: ""
    suite = a_suite()
    storage = open_storage(url or f"sqlite:///{out}/optuna.db", out)
    studies = [Study(search, storage, out) for search in searches(suite)]
    tracker, path = Untracked("", out, suite.name), tuned_path(suite, out)
    tune_module.tune(studies, RunEnvironment(out), tracker, path, 1, lambda *_: None, lambda *_: None)


@contextmanager
def _slow_folder(log: Path, seconds: float, folder: Path, cell: Cell) -> Iterator[None]:
    with open_folder(folder, cell):
        if not is_done(folder):
            with log.open("a") as file:
                file.write(f"{cell.hash}\n")
            time.sleep(seconds)
        yield


@cache
def _template() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """An empty database of Optuna's; to make one takes a second."""
    keep = tempfile.TemporaryDirectory()
    path = Path(keep.name)
    open_storage(f"sqlite:///{path}/optuna.db", path)
    return keep, path / "optuna.db"
