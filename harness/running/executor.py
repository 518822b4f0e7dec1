"""Runs many cells: in this process, in several, or on a Ray cluster. The choice does not change any result."""

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fedprompt.core.errors import UserError
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.folder import LockedError, is_locked, note_failure, open_folder, run_folder
from fedprompt.harness.running.processes import worker_context
from fedprompt.harness.running.run import RoundProgress, run_cell
from fedprompt.harness.running.site import Site
from fedprompt.methods import load_plugin, registry

EXECUTORS = ("local", "ray")
RETRIES = 2  # of a cell whose process died; it resumes from its checkpoint


@dataclass(frozen=True)
class CellOutcome:
    """How a cell ended: ``folder`` is finished unless there is an ``error``."""

    cell: Cell
    folder: Path
    error: str = ""
    locked: bool = False  # the error is that another process is running the cell


OnRound = Callable[[RoundProgress], None]


def execute(
    cells: Sequence[Cell],
    site: Site,
    on_round: OnRound,
    workers: int = 1,
    executor: str = "local",
    restart: Collection[str] = (),
) -> Iterator[CellOutcome]:
    """Yield outcomes as cells end, in any order. A failing cell fails alone.

    ``restart`` has the hashes of cells that begin anew, whatever their folders hold.
    """
    if executor != "ray" and workers == 1:
        for cell in cells:
            yield attempt(cell, site, on_round, cell.hash in restart)
        return
    tries = Tries(site, set(restart), on_round)
    if executor == "ray":
        from fedprompt.harness.running.on_ray import execute_on_ray

        yield from execute_on_ray(cells, site, tries)
    else:
        yield from _in_processes(cells, site, tries, workers)


def attempt(cell: Cell, site: Site, on_round: OnRound, restart: bool) -> CellOutcome:
    folder = run_folder(site.out, cell)
    try:
        if is_locked(folder):  # known before the data are loaded
            raise LockedError(cell)
        if cell.method not in registry():  # a worker knows plugins only by their files
            for plugin in site.plugins:
                load_plugin(plugin)
        run_cell(cell, site, on_round, restart)
        return CellOutcome(cell, folder)
    except LockedError as error:  # not a failure of the cell
        return CellOutcome(cell, folder, str(error), locked=True)
    except UserError as error:
        reason = str(error)
    except (Exception, SystemExit) as error:  # a faulty method must not stop the other cells; its error is kept
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return _failed(cell, folder, reason)


def _failed(cell: Cell, folder: Path, reason: str) -> CellOutcome:
    """The reason is also written into the folder, if that can be written to."""
    try:
        note_failure(folder, reason)
    except OSError as error:
        reason += f" (nor can this be noted in {folder}: {error.strerror})"
    return CellOutcome(cell, folder, reason)


class Tries:
    """What a parent knows of its cells: which have begun, and how often their processes died."""

    def __init__(self, site: Site, restart: set[str], on_round: OnRound) -> None:
        self._site, self._on_round = site, on_round
        self._restart = restart  # less those that have begun anew: they are resumed
        self._deaths: Counter[str] = Counter()

    def starts_over(self, cell: Cell) -> bool:
        return cell.hash in self._restart

    def round(self, progress: RoundProgress) -> None:
        self._restart.discard(progress.cell)
        self._on_round(progress)

    def died(self, cell: Cell, why: str = "killed, or out of memory?") -> CellOutcome | None:
        """The process of ``cell`` is gone: None while it may be tried again."""
        self._deaths[cell.hash] += 1
        if self._deaths[cell.hash] <= RETRIES:
            return None
        folder = run_folder(self._site.out, cell)
        reason = f"its process died {RETRIES + 1} times ({why}); the same command tries again"
        if self.starts_over(cell):  # it died before it could: results that are to be replaced must not stay
            with suppress(UserError, OSError), open_folder(folder, cell, restart=True):
                pass
        return _failed(cell, folder, reason)


class _Worker:
    """A process that runs one cell after another. Its pipe brings rounds and outcomes, and ends when the process dies.

    Each has its own pipe: a process that is killed while it writes to a shared queue blocks all others.
    """

    def __init__(self, site: Site) -> None:
        context = worker_context()
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, site, dict(os.environ)), daemon=True)  # type: ignore[attr-defined]
        self.cell: Cell | None = None
        resource_tracker.ensure_running()  # else `start` starts it, which unblocks the signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is for the parent alone
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()

    def run(self, cell: Cell, restart: bool) -> None:
        self.cell = cell
        with suppress(OSError):  # it is dead, which reading the pipe will tell
            self.pipe.send((cell, restart))

    def end(self) -> None:
        """At once: what a cell has done is in its checkpoint."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: "Connection[Any, Any]", site: Site, environment: dict[str, str]) -> None:
    """``environment`` is the parent's: the process that this one was copied from may be older than its settings."""
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    while True:
        cell, restart = pipe.recv()
        pipe.send(attempt(cell, site, pipe.send, restart))


def _die_with_parent() -> None:
    """A worker whose parent was killed would go on writing to a folder that the next call wants to resume."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _in_processes(cells: Sequence[Cell], site: Site, tries: Tries, count: int) -> Iterator[CellOutcome]:
    waiting, workers = deque(cells), dict[Any, _Worker]()  # by pipe
    try:
        while waiting or any(worker.cell for worker in workers.values()):
            idle = [worker for worker in workers.values() if worker.cell is None]
            while waiting and (idle or len(workers) < count):
                worker, cell = idle.pop() if idle else _Worker(site), waiting.popleft()
                workers[worker.pipe] = worker
                worker.run(cell, tries.starts_over(cell))
            for pipe in wait(list(workers)):
                worker = workers[pipe]
                try:
                    message: RoundProgress | CellOutcome | None = worker.pipe.recv()
                except (EOFError, OSError):
                    workers.pop(pipe).end()
                    if worker.cell is None:
                        continue
                    message = tries.died(worker.cell)
                    if message is None:
                        waiting.append(worker.cell)  # behind the others: it may need more memory than they leave
                if isinstance(message, RoundProgress):
                    tries.round(message)
                elif message:
                    worker.cell = None
                    yield message
    finally:
        for worker in workers.values():
            worker.end()
