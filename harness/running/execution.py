"""Runs many cells through an executor; cells whose process died are tried again and resume."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from fedprompt.core.errors import UserError
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.executors import get_executor
from fedprompt.harness.running.executors.attempt import failed
from fedprompt.harness.running.executors.interface import CellOutcome, LostCell, OnRound, Task
from fedprompt.harness.running.folder import open_folder, run_folder
from fedprompt.harness.running.run import RoundProgress

__all__ = ["RETRIES", "CellOutcome", "execute"]

RETRIES = 2  # of a cell whose process died; it resumes from its checkpoint


def execute(
    cells: Sequence[Cell],
    environment: RunEnvironment,
    on_round: OnRound,
    workers: int = 1,
    executor: str = "local",
    restart: Collection[str] = (),
    retries: int = RETRIES,
) -> Iterator[CellOutcome]:
    """Yield outcomes as cells end, in any order. A failing cell fails alone.

    ``restart`` has the hashes of cells that start over, whatever their folders hold.
    """
    log = AttemptLog(environment, restart, retries)

    def heard(progress: RoundProgress) -> None:
        log.began(progress.cell)
        on_round(progress)

    pending = {cell.hash for cell in cells}
    if not pending:
        return
    with get_executor(executor).create(environment, workers) as running:
        running.submit([log.task(cell) for cell in cells])
        while pending:
            for ended in running.wait(heard):
                outcome = log.lost(ended) if isinstance(ended, LostCell) else ended
                if outcome is None:
                    running.submit([log.task(ended.cell)])
                else:
                    pending.discard(outcome.cell.hash)
                    yield outcome


class AttemptLog:
    """Which cells have to start over, and how often each one's process died."""

    def __init__(self, environment: RunEnvironment, restart: Collection[str], retries: int) -> None:
        self._environment, self._retries = environment, retries
        self._restart = set(restart)  # less those that have begun: they are resumed
        self._deaths: Counter[str] = Counter()

    def task(self, cell: Cell) -> Task:
        return Task(cell, cell.hash in self._restart)

    def began(self, cell_hash: str) -> None:
        """The cell has finished a round, so it no longer holds what it was to start over from."""
        self._restart.discard(cell_hash)

    def lost(self, lost: LostCell) -> CellOutcome | None:
        """None if the cell may be tried again, else its failure."""
        cell, reason = lost.cell, lost.reason
        if lost.retry:
            self._deaths[cell.hash] += 1
            if self._deaths[cell.hash] <= self._retries:
                return None
            reason = f"its process died {self._retries + 1} times ({reason}); the same command tries again"
        if cell.hash in self._restart:  # it ended before its first round: results to be replaced must not stay
            folder = run_folder(self._environment.out, cell)
            with suppress(UserError, OSError), open_folder(folder, cell, restart=True):
                pass
        return failed(cell, self._environment, reason)
