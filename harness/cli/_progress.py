"""Runs cells for `fedprompt run` and `fedprompt bench`: with bars, recorded in MLflow, failures named."""

import sys
from argparse import Namespace
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from fedprompt.harness.cells.cell import Cell
    from fedprompt.harness.cells.executor import CellOutcome
    from fedprompt.harness.cells.run import RoundProgress
    from fedprompt.harness.cells.site import Site


class CellBars:
    """One bar for all cells and one for each that is running. An observer of a session."""

    def __init__(self, bars: "Progress", total: int) -> None:
        self._bars = bars
        self._all_cells = bars.add_task("cells", total=total)
        self._running: dict[str, TaskID] = {}  # by hash, which is also the name of the run folder

    def round(self, cell: "Cell", progress: "RoundProgress") -> None:
        if cell.hash not in self._running:
            self._running[cell.hash] = self._bars.add_task(cell.label, total=progress.rounds)
        self._bars.update(self._running[cell.hash], completed=progress.round)

    def finish(self, folder: Path) -> None:
        self._end(folder.name)

    def failed(self, cell: "Cell", reason: str) -> None:
        from fedprompt.harness.federation.rounds import failure_state

        self._end(cell.hash)
        line = f"{failure_state(reason)}: {cell.label}: {reason.removeprefix('diverged ')}"
        self._bars.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def _end(self, cell_hash: str) -> None:
        self._bars.advance(self._all_cells)
        if cell_hash in self._running:
            self._bars.remove_task(self._running.pop(cell_hash))


def run_and_record(
    cells: "Sequence[Cell]",
    site: "Site",
    args: Namespace,
    restart: Collection[str],
    suite: str,
    workers: int = 1,
    executor: str = "local",
) -> "list[CellOutcome]":
    """The outcomes of all cells; those with a hash in ``restart`` start over.

    Bad input of a cell that belongs to no suite is left to the caller to report.
    """
    from fedprompt.harness.cells.session import Observer, finished_cells, run_cells
    from fedprompt.harness.cli._options import tracking_uri
    from fedprompt.harness.core.progress import progress
    from fedprompt.harness.tracking.tracker import Tracker

    finished = [cell for cell in finished_cells(cells, site.out) if cell.hash not in restart]
    if finished:
        print(f"{len(finished)} of {len(cells)} cells are finished already", file=sys.stderr)
    with progress() as bars:
        observers: list[Observer] = [CellBars(bars, len(cells)), Tracker(tracking_uri(args), site.out, suite, restart)]
        outcomes = run_cells(
            cells,
            site,
            observers,
            workers=workers,
            executor=executor,
            restart=restart,
            report_unstarted=bool(suite),
        )
    for outcome in outcomes:
        if outcome.locked:
            print(f"not run: {outcome.error}", file=sys.stderr)
    return outcomes
