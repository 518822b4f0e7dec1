"""Runs cells for `fedprompt run` and `fedprompt bench`: with bars, recorded in MLflow, failures named."""

import json
import sys
from argparse import Namespace
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from fedprompt.harness.cli._remaining import Remaining

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from fedprompt.harness.running.cell import Cell
    from fedprompt.harness.running.environment import RunEnvironment
    from fedprompt.harness.running.execution import CellOutcome
    from fedprompt.harness.running.run import RoundProgress
    from fedprompt.harness.running.suite import Suite


COUNTING = 60.0  # seconds that plugins may take to have their costs counted, which only the clock needs


class CellBars:
    """One bar for all cells and one for each that is running; without a terminal, one line per cell that ended.

    An observer of a session.
    """

    def __init__(
        self,
        bars: "Progress",
        cells: "Sequence[Cell]",
        finished: Collection[str],
        names: Mapping[str, str],
        flops: Mapping[str, float],
    ) -> None:
        """``finished`` has the hashes of cells that ended before, ``names`` labels that differ from the cells' own."""
        self._bars = bars
        unfinished = {cell.hash: cell for cell in cells if cell.hash not in finished}
        self._labels = {cell.hash: names.get(cell.hash, cell.label) for cell in cells}
        self._unfinished = frozenset(unfinished)
        self._remaining, self._begun = Remaining(unfinished, flops), monotonic()
        self._ended, self._total = len(finished), len(cells)
        self._all_cells = bars.add_task("cells", total=len(cells), completed=len(finished), until=None)
        self._running: dict[str, TaskID] = {}  # by hash, which is also the name of the run folder

    def round(self, cell: "Cell", progress: "RoundProgress") -> None:
        self._remaining.round(progress)
        if cell.hash not in self._running:
            self._running[cell.hash] = self._bars.add_task(self._labels[cell.hash], total=progress.rounds)
        self._bars.update(self._running[cell.hash], completed=progress.round)
        self._show_left()

    def finish(self, folder: Path) -> None:
        if folder.name not in self._unfinished:  # finished before this session
            return
        self._end(folder.name)
        if self._bars.disable and self._total > 1:
            summary = json.loads((folder / "summary.json").read_text())
            self._say(f"{self._labels[folder.name]}: Average {100 * summary['average']:.2f} %{self._time()}")

    def failed(self, cell: "Cell", reason: str) -> None:
        from fedprompt.harness.federation.rounds import failure_state

        if cell.hash in self._unfinished:  # else it is one that had finished, but is not believed any more
            self._end(cell.hash)
        line = f"{failure_state(reason)}: {self._labels[cell.hash]}: {reason.removeprefix('diverged ')}"
        self._bars.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _end(self, cell_hash: str) -> None:
        self._ended += 1
        self._remaining.end(cell_hash)
        self._bars.update(self._all_cells, completed=self._ended)
        if cell_hash in self._running:
            self._bars.remove_task(self._running.pop(cell_hash))
        self._show_left()

    def _show_left(self) -> None:
        left = self._remaining.seconds
        if left is not None:
            self._bars.update(self._all_cells, until=monotonic() + left)

    def _time(self) -> str:
        from fedprompt.core.text import duration

        left = self._remaining.seconds
        about = f", about {duration(left)} left" if left else ""
        return f"; {duration(monotonic() - self._begun)} so far{about}"

    def _say(self, line: str) -> None:
        print(f"{self._ended}/{self._total} {line}", file=sys.stderr, flush=True)


def run_and_record(
    cells: "Sequence[Cell]",
    environment: "RunEnvironment",
    args: Namespace,
    restart: Collection[str],
    suite: "Suite | None" = None,
    workers: int = 1,
    executor: str = "local",
) -> "list[CellOutcome]":
    """The outcomes of all cells; those with a hash in ``restart`` start over.

    Bad input of a cell that belongs to no suite is left to the caller to report.
    """
    from fedprompt.core.progress import progress
    from fedprompt.harness.cli._options import tracking_uri
    from fedprompt.harness.recording.tracker import Tracker
    from fedprompt.harness.running.session import Observer, finished_cells, run_cells

    finished = {cell.hash for cell in finished_cells(cells, environment.out) if cell.hash not in restart}
    if finished:
        print(f"{len(finished)} of {len(cells)} cells are finished already", file=sys.stderr)
    without_data = check_inputs([cell for cell in cells if cell.hash not in finished], environment)
    cells = [cell for cell in cells if cell.hash not in without_data]
    variants = suite.variants() if suite else {}
    names = {cell.hash: cell.named(variants[cell.hash]) for cell in cells if cell.hash in variants}
    flops = _flops([cell for cell in cells if cell.hash not in finished], environment)
    with progress() as bars:
        observers: list[Observer] = [
            CellBars(bars, cells, finished, names, flops),
            Tracker(tracking_uri(args), environment.out, suite.name if suite else "", restart, variants),
        ]
        outcomes = run_cells(
            cells,
            environment,
            observers,
            workers=workers,
            executor=executor,
            restart=restart,
            report_unstarted=suite is not None,
        )
    for outcome in outcomes:
        if outcome.locked:
            print(f"not run: {outcome.error}", file=sys.stderr)
    return [*outcomes, *without_data.values()]


def check_inputs(cells: "Sequence[Cell]", environment: "RunEnvironment") -> "dict[str, CellOutcome]":
    """Look for weights and data before any cell runs, so that what is missing is said once.

    Returns the outcomes of cells whose data are missing, by hash; raises if there are no others, or no weights.
    """
    from fedprompt.backbones.weights import load_backbone
    from fedprompt.datasets import MissingDataError, load_labels, parse_partition, short_name, shots_note
    from fedprompt.harness.running.execution import CellOutcome
    from fedprompt.harness.running.folder import run_folder

    for spec in dict.fromkeys(cell.backbone for cell in cells):
        if spec.weights == "hub":  # fetched here, so that a missing network is noticed before any image is read
            load_backbone(spec)
    missing: dict[str, MissingDataError] = {}
    for name in dict.fromkeys(cell.dataset for cell in cells):
        try:
            dataset = load_labels(name, environment.data_root)
        except MissingDataError as error:
            missing[name] = error
            continue
        for partition, seed in {cell.partition: cell.seed for cell in cells if cell.dataset == name}.items():
            if note := shots_note(parse_partition(partition), dataset, seed):
                print(f"note: {note}", file=sys.stderr)
    outcomes = {
        cell.hash: CellOutcome(cell, run_folder(environment.out, cell), str(missing[cell.dataset]))
        for cell in cells
        if cell.dataset in missing
    }
    if outcomes and len(outcomes) == len(cells):
        raise next(iter(missing.values()))
    for name, reason in missing.items():
        count = sum(cell.dataset == name for cell in cells)
        print(f"not run: {count} cells of {short_name(name)}: {reason}", file=sys.stderr)
    return outcomes


def _flops(cells: "Sequence[Cell]", environment: "RunEnvironment", seconds: float = COUNTING) -> dict[str, int]:
    """What the cells cost, to tell how long they take; nothing for a single cell, and where it cannot be counted.

    Counting runs the methods' own code. Plugins are counted in a process that they may end, within ``seconds``.
    """
    if len(cells) < 2:
        return {}
    from fedprompt.harness.planning.plan import count_flops
    from fedprompt.harness.running.processes import call_apart

    try:
        return (
            call_apart(_count_plugins, cells, environment, seconds=seconds)
            if environment.plugins
            else count_flops(cells, environment)
        )
    except Exception:  # bad input, or a method that shapes alone do not satisfy: the cells themselves report it
        return {}


def _count_plugins(cells: "Sequence[Cell]", environment: "RunEnvironment") -> dict[str, int]:
    from fedprompt.harness.planning.plan import count_flops
    from fedprompt.methods import load_plugin

    for file in environment.plugins:
        load_plugin(file)
    return count_flops(cells, environment)
