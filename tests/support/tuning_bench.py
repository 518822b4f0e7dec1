"""A suite to tune in the tests, and a bench that trains nothing."""

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedprompt.harness.cells.cell import Cell
from fedprompt.harness.cells.executor import CellOutcome
from fedprompt.harness.cells.site import Site
from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.cells.suite_file import parse_suite
from fedprompt.harness.tuning import run as _tuning_run
from fedprompt.harness.tuning.queue import Queue, open_storage
from fedprompt.harness.tuning.search import Search, searches, tuned_path
from fedprompt.harness.tuning.trials import StudyTracker
from support.run_folders import BACKBONE, done_folder

Act = Callable[[Cell], str]  # why a cell fails, if it does
KEY = ("fedvpt", "glyph-domains", "domains:m=2")


def a_suite(**changes: Any) -> Suite:
    raw = {
        "methods": ["fedvpt"],
        "seeds": [0, 1],
        "backbone": "micro-vit",
        "params": {"all": {"lr": 0.1}},
        "tune": {"seeds": [100, 101], "trials": 3, "grid": {"lr": [0.03, 0.1, 0.3]}, "protocol": {"rounds": 2}},
        "settings": [{"table": "T", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [2]}],
    }
    return dataclasses.replace(parse_suite("mini", raw | changes), backbone=BACKBONE)


def tune(**changes: Any) -> dict[str, Any]:
    """The suite's table [tune]."""
    return {"tune": {"seeds": [100], "trials": 3, "grid": {"lr": [0.03, 0.1, 0.3]}} | changes}


def only_search(suite: Suite, **options: Any) -> Search:
    [search] = searches(suite, **options)
    return search


class Untracked(StudyTracker):
    """Where MLflow is not the point."""

    def _try(self, action: Callable[[], Any]) -> None:  # noqa: ARG002
        return None


class Bench:
    """A results folder, and cells that end at once with the accuracy ``accuracy[lr]``."""

    def __init__(self, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.out = out
        self.ran: list[tuple[float, int]] = []  # learning rate and seed of each cell
        self.accuracy = {0.03: 0.2, 0.1: 0.5, 0.3: 0.7}
        self.act: Act = lambda _: ""
        out.mkdir(exist_ok=True)
        shutil.copy(_template()[1], out / "optuna.db")
        self.storage = open_storage(f"sqlite:///{out}/optuna.db")
        monkeypatch.setattr(_tuning_run, "execute", self._execute)

    def _execute(self, cells: Sequence[Cell], site: Site, *_: Any) -> Iterator[CellOutcome]:
        for cell in cells:
            self.ran.append((cell.params["lr"], cell.seed))
            error = self.act(cell)
            accuracy = self.accuracy.get(cell.params["lr"], 0.4)
            folder = (
                site.out / "nowhere" if error else done_folder(site.out, cell, [[accuracy] * 2] * cell.protocol.rounds)
            )
            yield CellOutcome(cell, folder, error)

    def tune(self, suite: Suite, sampler: str = "grid", uri: str = "", workers: int = 1) -> list[Queue]:
        queues = [Queue(search, self.storage) for search in searches(suite, sampler)]
        tracker = StudyTracker(uri, self.out, suite.name) if uri else Untracked("", self.out, suite.name)
        path = tuned_path(suite, self.out)
        _tuning_run.tune(queues, Site(self.out), tracker, path, workers, lambda *_: None, lambda *_: None)
        return queues

    @property
    def rates(self) -> list[float]:
        return [rate for rate, _ in self.ran]


@cache
def _template() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """An empty database of Optuna's; to make one takes a second."""
    keep = tempfile.TemporaryDirectory()
    path = Path(keep.name)
    open_storage(f"sqlite:///{path}/optuna.db")
    return keep, path / "optuna.db"


def states(queue: Queue) -> list[tuple[float, str]]:
    return [(trial.params["lr"], trial.state.name) for trial in queue.study.trials]
