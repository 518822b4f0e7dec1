"""Runs studies: proposed points become cells, finished cells become results, and complete studies are written down.

Several processes may tune into one results folder. The lock of a run folder decides who runs its cell; everybody else
goes on with other cells, and takes the result from the folder when it is done.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.execution import CellOutcome, execute
from fedprompt.harness.running.folder import is_locked, run_folder
from fedprompt.harness.running.run import RoundProgress
from fedprompt.harness.running.session import finished_cells, finished_outcomes
from fedprompt.harness.tuning.search import Point, Result, Search, finalists
from fedprompt.harness.tuning.study import Study, tuning_lock
from fedprompt.harness.tuning.study_tracker import StudyTracker
from fedprompt.harness.tuning.tuned import read_tuned, tuned_entry, write_tuned

POLL = 5.0  # seconds between two looks at the cells of other processes

Report = Callable[[Cell, RoundProgress], None]  # called after each round
Ended = Callable[[Search, Result, Sequence[Cell]], None]  # called for each point, with its cells
Wave = Mapping[Study, Sequence[Point]]  # points whose cells run together


def tune(
    studies: Sequence[Study],
    environment: RunEnvironment,
    tracker: StudyTracker,
    path: Path,
    workers: int,
    report: Report,
    ended: Ended,
    executor: str = "local",
) -> None:
    """Run until every study is complete; its values are written to ``path`` as soon as it is.

    ``workers`` is also how many cells are proposed at a time, wherever they run.
    """
    run = partial(
        _run, environment=environment, tracker=tracker, workers=workers, executor=executor, report=report, ended=ended
    )
    wave: Wave = {study: study.propose(_share(workers, studies)) for study in studies}
    while wave:
        next_wave: dict[Study, Sequence[Point]] = {}
        for study in run(wave):
            points = study.propose(_share(workers, wave))
            if points:
                next_wave[study] = points
            elif not study.search.finals:
                _record(study, environment.out, tracker, path)
        wave = next_wave
    finals = {study: [result.point for result in finalists(study.results)] for study in studies if study.search.finals}
    for study in run(finals, final=True):
        _record(study, environment.out, tracker, path)


def _share(workers: int, studies: Sequence[Study] | Wave) -> int:
    """How many points of one study keep the workers busy; TPE learns more from earlier points if they are few."""
    return math.ceil(workers / len(studies))


def _run(
    wave: Wave,
    environment: RunEnvironment,
    tracker: StudyTracker,
    workers: int,
    executor: str,
    report: Report,
    ended: Ended,
    final: bool = False,
) -> Iterator[Study]:
    """Run the cells of all points; a study is yielded when the last of its points has ended."""
    cells: dict[str, Cell] = {}
    origins: dict[str, tuple[Study, Point]] = {}  # by cell
    for study, points in wave.items():
        for point in points:
            for cell in study.search.cells(point, final):
                cells[cell.hash], origins[cell.hash] = cell, (study, point)
                tracker.adopt(cell, study.search, point)
    left = {study: len(points) for study, points in wave.items()}
    yield from (study for study, count in left.items() if not count)

    def tell(event: RoundProgress) -> None:
        tracker.round(cells[event.cell], event)
        report(cells[event.cell], event)

    outcomes: dict[str, CellOutcome] = {}
    for outcome in _outcomes(cells.values(), environment, tell, workers, executor):
        if outcome.error:
            tracker.failed(outcome.cell, outcome.error)
        else:
            tracker.finish(outcome.folder)
        outcomes[outcome.cell.hash] = outcome
        study, point = origins[outcome.cell.hash]
        same_point = study.search.cells(point, final)
        if outcomes.keys() >= {cell.hash for cell in same_point}:
            result = _result(study.search, point, [outcomes[cell.hash] for cell in same_point])
            if final:
                study.conclude(result)
            else:
                study.end(result)
            ended(study.search, result, same_point)
            left[study] -= 1
            if not left[study]:
                yield study


def _outcomes(
    cells: Iterable[Cell],
    environment: RunEnvironment,
    tell: Callable[[RoundProgress], None],
    workers: int,
    executor: str,
) -> Iterator[CellOutcome]:
    """How each cell ended: before, here, or in another process, which is waited for once nothing else is left."""
    remaining = {cell.hash: cell for cell in cells}
    while remaining:
        for outcome in finished_outcomes(finished_cells(list(remaining.values()), environment.out), environment):
            del remaining[outcome.cell.hash]
            yield outcome
        free = [cell for cell in remaining.values() if not is_locked(run_folder(environment.out, cell))]
        for outcome in execute(free, environment, tell, min(workers, len(free)), executor) if free else ():
            if not outcome.locked:
                del remaining[outcome.cell.hash]
                yield outcome
        if remaining:
            time.sleep(POLL)


def _result(search: Search, point: Point, outcomes: Sequence[CellOutcome]) -> Result:
    """The mean over the tuning seeds; a point with a failed seed has failed."""
    for outcome in outcomes:
        if outcome.error:
            return Result(point, reason=outcome.error)
    by_seed = tuple(_value(outcome.folder, search.readings) for outcome in outcomes)
    mean = sum(by_seed) / len(by_seed)
    if not math.isfinite(mean):
        return Result(point, reason=f"the validation accuracy is {mean}")
    return Result(point, mean, by_seed=by_seed)


def _value(folder: Path, readings: Sequence[str]) -> float:
    """The mean over the ways in which the suite reads a training."""
    summary = json.loads((folder / "summary.json").read_text())
    return sum(float(summary[reading]) for reading in readings) / len(readings)


def _record(study: Study, out: Path, tracker: StudyTracker, path: Path) -> None:
    """Tell MLflow how the study ended, and put its values into the tuned file, among those of other studies."""
    tracker.record_study(study.search, study.results)
    entry = tuned_entry(study.search, study.results)
    if entry is None:
        return
    with tuning_lock(out):
        others = read_tuned(path) if path.exists() else []
        write_tuned(path, [*(other for other in others if other.key != entry.key), entry])
