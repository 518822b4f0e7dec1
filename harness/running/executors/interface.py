"""What an executor is asked to do, and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.run import RoundProgress

OnRound = Callable[[RoundProgress], None]


class Task(NamedTuple):
    """A cell to run."""

    cell: Cell
    restart: bool = False  # throw away what its folder holds


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended: ``folder`` is finished unless there is an ``error``."""

    cell: Cell
    folder: Path
    error: str = ""
    locked: bool = False  # the error is that another process is running the cell


@dataclass(frozen=True)
class LostCell:
    """A cell whose process ended without an outcome."""

    cell: Cell
    reason: str
    retry: bool = True  # False if the process was killed on purpose: then the reason is the cell's error


class Executor(ABC):
    """Runs cells somewhere: two methods, and `close` if something has to be stopped.

    `execute` submits all cells, waits until each has ended, submits lost ones again and closes the executor. An
    executor calls `attempt` wherever its cells run, which turns whatever goes wrong in a cell into an outcome.
    """

    @abstractmethod
    def submit(self, tasks: Sequence[Task]) -> None:
        """Queue cells behind those that were submitted before, without waiting for any."""

    @abstractmethod
    def wait(self, on_round: OnRound) -> Iterable[CellOutcome | LostCell]:
        """Wait until something happens, or a few seconds; return the cells that ended, maybe none.

        ``on_round`` must be called for each round that a cell has reported, before the cell is returned.
        """

    def close(self) -> None:  # noqa: B027 - most have something to stop, but not all
        """Stop whatever is still running, at once: what a cell has done is in its checkpoint."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
