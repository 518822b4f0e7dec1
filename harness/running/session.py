"""A session: the cells of one command, of which it runs those that are not finished and reports on all."""

import json
import typing
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import DEFAULT_ENVIRONMENT, RunEnvironment
from fedprompt.harness.running.execution import CellOutcome, execute
from fedprompt.harness.running.folder import REMEDY, damaged_file, is_done, run_folder
from fedprompt.harness.running.run import RoundProgress, data_checksum


class Observer(typing.Protocol):
    """What a session tells: tracking records it, the command line draws bars."""

    def round(self, cell: Cell, progress: RoundProgress, /) -> object:
        """A running cell has finished a round."""

    def finish(self, folder: Path, /) -> object:
        """A cell is finished, now or in an earlier session; its run folder is complete."""

    def failed(self, cell: Cell, reason: str, /) -> object:
        """A cell stopped with an error; other cells go on."""


def finished_cells(cells: Sequence[Cell], out: Path) -> list[Cell]:
    return [cell for cell in cells if is_done(run_folder(out, cell))]


def finished_outcomes(cells: Iterable[Cell], environment: RunEnvironment) -> Iterator[CellOutcome]:
    """Outcomes of cells with finished folders: an error where a file is damaged or the data have changed since."""
    current: dict[tuple[str, int], str] = {}  # checksums by data set and image size
    for cell in cells:
        folder, data = run_folder(environment.out, cell), (cell.dataset, cell.backbone.image_size)
        if damaged := damaged_file(folder):
            yield CellOutcome(cell, folder, f"{folder / damaged} is not what the finished run wrote; {REMEDY}")
            continue
        if data not in current:
            current[data] = data_checksum(cell, environment)
        before = str(json.loads((folder / "summary.json").read_text())["data_checksum"])
        if current[data] and before != current[data]:
            change = f"checksum {before[:12]}, now {current[data][:12]}"
            yield CellOutcome(cell, folder, f"it was finished with other data ({change}); restore them, or {REMEDY}")
        else:
            yield CellOutcome(cell, folder)


def run_cells(
    cells: Sequence[Cell],
    environment: RunEnvironment = DEFAULT_ENVIRONMENT,
    observers: Sequence[Observer] = (),
    *,
    workers: int = 1,
    executor: str = "local",
    restart: bool | Collection[str] = False,
    report_unstarted: bool = True,
) -> list[CellOutcome]:
    """Run or resume what is not finished; returns the outcome of every cell, finished ones first, others as they ended.

    ``restart`` starts cells over that are finished or begun: all, or those with the given hashes.

    A failing cell does not stop the others. Observers do not hear of one that another process is running and, without
    ``report_unstarted``, of one that failed before it had a run folder, which is what bad input does.
    """
    all_hashes = {cell.hash for cell in cells}
    again = all_hashes & set(restart) if isinstance(restart, Collection) else all_hashes if restart else set()
    finished = [cell for cell in finished_cells(cells, environment.out) if cell.hash not in again]
    outcomes = list(finished_outcomes(finished, environment))
    for outcome in outcomes:  # observers may have missed its end
        _tell(observers, outcome)
    finished_hashes = {cell.hash for cell in finished}
    unfinished = {cell.hash: cell for cell in cells if cell.hash not in finished_hashes}

    def on_round(progress: RoundProgress) -> None:
        for observer in observers:
            observer.round(unfinished[progress.cell], progress)

    workers = min(workers, max(1, len(unfinished)))
    for outcome in execute(list(unfinished.values()), environment, on_round, workers, executor, again):
        if not outcome.locked and (report_unstarted or outcome.folder.exists()):
            _tell(observers, outcome)
        outcomes.append(outcome)
    return outcomes


def _tell(observers: Sequence[Observer], outcome: CellOutcome) -> None:
    for observer in observers:
        if outcome.error:
            observer.failed(outcome.cell, outcome.error)
        else:
            observer.finish(outcome.folder)
