"""Runs searches: takes trials from the queues, runs their cells like any others, tells values, writes what is chosen.

Cells run in waves. A wave is small enough for several processes to share the work of one database, and large enough
for its workers to be started seldom; of TPE it holds few trials of one study, for each learns from those before.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from optuna.trial import Trial

from fedprompt.harness.cells.cell import Cell
from fedprompt.harness.cells.executor import Outcome, execute
from fedprompt.harness.cells.folder import is_done, run_folder
from fedprompt.harness.cells.run import Progress, Site
from fedprompt.harness.tracking.tracker import alone
from fedprompt.harness.tuning.file import Tuned, read_tuned, write_tuned
from fedprompt.harness.tuning.queue import Queue, Result, heartbeat
from fedprompt.harness.tuning.search import Point, Search
from fedprompt.harness.tuning.trials import StudyTracker

WAVE = 64  # trials
POLL = 5.0  # seconds between two looks at the trials of other processes

Report = Callable[[Cell, Progress], None]  # told of each round
Ended = Callable[[Search, Point, str], None]  # told of each trial, with the reason if it failed


@dataclass
class _Running:
    """A trial on its way."""

    queue: Queue
    trial: Trial
    left: set[str]  # hashes of its cells
    values: list[float] = field(default_factory=list)
    reason: str = ""

    def take(self, outcome: Outcome) -> bool:
        """Whether that was its last cell."""
        self.left.discard(outcome.cell.hash)
        if outcome.error:
            self.reason = self.reason or outcome.error
        else:
            self.values.append(float(json.loads((outcome.folder / "summary.json").read_text())["average"]))
        return not self.left


def tune(
    queues: Sequence[Queue], site: Site, tracker: StudyTracker, path: Path, workers: int, report: Report, ended: Ended
) -> None:
    """Run until every study is complete; what it chose is written to ``path`` as soon as it is."""
    left = list(queues)

    def settle(queue: Queue) -> None:
        if queue.complete:
            left.remove(queue)
            _settle(queue, site.out, tracker, path)

    with heartbeat(queues):
        try:
            for queue in queues:
                settle(queue)
            while left:
                wave = _take(left, workers)
                for running in _run(wave, site, tracker, workers, report):
                    ended(running.queue.search, running.trial.params, running.reason)
                    settle(running.queue)
                if not wave and any(queue.busy for queue in left):
                    time.sleep(POLL)  # other processes run what is left
                for queue in list(left):
                    settle(queue)
        finally:
            for queue in queues:
                queue.release()


def _take(queues: Sequence[Queue], workers: int) -> list[_Running]:
    """The trials of a wave: study after study, so that the first ones are complete soon."""
    grid = all(queue.search.sampler == "grid" for queue in queues)
    wave: list[_Running] = []
    while len(wave) < (WAVE if grid else workers):
        before = len(wave)
        for queue in queues:
            while len(wave) < WAVE and (trial := queue.ask()):
                wave.append(_Running(queue, trial, {cell.hash for cell in queue.search.cells(trial.params)}))
                if not grid:
                    break
        if len(wave) == before:
            break
    return wave


def _run(
    wave: Sequence[_Running], site: Site, tracker: StudyTracker, workers: int, report: Report
) -> Iterator[_Running]:
    """Run the cells of all trials; a trial is told, then yielded, when the last of its cells has ended."""
    cells: dict[str, Cell] = {}
    for running in wave:
        search, trial = running.queue.search, running.trial
        for cell in search.cells(trial.params):
            cells[cell.hash] = cell
            tracker.adopt(cell, search, trial.number, trial.params)

    def tell(event: Progress) -> None:
        tracker.round(cells[event.cell], event)
        report(cells[event.cell], event)

    for outcome in execute(list(cells.values()), site, tell, min(workers, max(1, len(cells)))):
        if outcome.error:
            tracker.failed(outcome.cell, outcome.error)
        else:
            tracker.finish(outcome.folder)
        for running in [running for running in wave if outcome.cell.hash in running.left]:
            if running.take(outcome):
                mean = sum(running.values) / len(running.values) if running.values else math.nan
                running.queue.tell(running.trial, mean, running.reason)
                yield running


def choose(results: Sequence[Result]) -> Result | None:
    """The best that finished. Ties go to the first, which is the default: no value is changed for nothing."""
    finished = [result for result in results if result.value is not None]
    return max(finished, key=lambda result: round(result.value or 0.0, 9), default=None)


def _settle(queue: Queue, out: Path, tracker: StudyTracker, path: Path) -> None:
    """Record a complete study in MLflow and in the tuned file, among what other searches have put there."""
    search, results = queue.search, queue.results()
    best, default = choose(results), results[0].value
    finished = sum(result.value is not None for result in results)
    metrics: dict[str, float] = {"finished": finished, "failed": len(results) - finished}
    metrics |= {} if default is None else {"default_value": default}
    metrics |= {} if best is None or best.value is None else {"best_value": best.value}
    rows = [{"trial": r.number, **r.point, "value": r.value, "state": r.state, "chosen": r is best} for r in results]
    for result in results:  # trials that ended while MLflow was away
        for cell in search.cells(result.point):
            if result.number is not None and is_done(run_folder(out, cell)):
                tracker.adopt(cell, search, result.number, result.point)
                tracker.finish(run_folder(out, cell))
    tracker.study(search, pd.DataFrame(rows), metrics, best.point if best else {})
    if best is None or best.value is None:
        return
    method, dataset, partition = search.key
    entry = Tuned(
        method=method,
        dataset=dataset,
        partition=partition,
        params=best.point,
        study=search.name,
        value=round(best.value, 6),
        default_value=None if default is None else round(default, 6),
        finished=finished,
        failed=len(results) - finished,
        seeds=tuple(cell.seed for cell in search.base),
        sampler=search.sampler,
        code=search.base[0].code,
    )
    with alone(out):
        others = read_tuned(path) if path.exists() else []
        write_tuned(path, [*(other for other in others if other.key != entry.key), entry])
