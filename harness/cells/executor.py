"""Runs many cells: in this process, in several, or on a Ray cluster. The choice does not change any result."""

import multiprocessing
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedprompt.harness.cells.cell import Cell
from fedprompt.harness.cells.folder import LockedError, is_locked, note_failure, run_folder
from fedprompt.harness.cells.run import RoundProgress, run_cell
from fedprompt.harness.cells.site import Site
from fedprompt.harness.core.errors import UserError
from fedprompt.methods import load_plugin

EXECUTORS = ("local", "ray")
POOL_RESTARTS = 3  # a worker that the system kills breaks its pool; the cells resume in a new one


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
    restart: bool = False,
) -> Iterator[CellOutcome]:
    """Yield outcomes as cells end, in any order. A failing cell fails alone."""
    if executor == "ray":
        yield from _on_ray(cells, site, on_round, restart)
    elif workers == 1:
        for cell in cells:
            yield _attempt(cell, site, on_round, restart)
    else:
        yield from _in_processes(cells, site, on_round, workers, restart)


def _attempt(cell: Cell, site: Site, on_round: OnRound, restart: bool) -> CellOutcome:
    folder = run_folder(site.out, cell)
    try:
        if is_locked(folder):  # known before the data are loaded
            raise LockedError(cell)
        run_cell(cell, site, on_round, restart)
        return CellOutcome(cell, folder)
    except LockedError as error:  # not a failure of the cell
        return CellOutcome(cell, folder, str(error), locked=True)
    except UserError as error:
        reason = str(error)
    except Exception as error:  # a faulty method must not stop the other cells; its error is kept and shown
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    note_failure(folder, reason)
    return CellOutcome(cell, folder, reason)


_messages: "multiprocessing.SimpleQueue[RoundProgress] | None" = None


def _start_worker(messages: Any, parent: int, plugins: tuple[str, ...]) -> None:
    global _messages
    _messages = messages
    for plugin in plugins:
        load_plugin(plugin)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: int) -> None:
    """A worker whose parent was killed would go on writing to a folder that the next call wants to resume."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(cell: Cell, site: Site, restart: bool) -> CellOutcome:
    assert _messages is not None
    return _attempt(cell, site, _messages.put, restart)


def _in_processes(
    cells: Sequence[Cell], site: Site, on_round: OnRound, workers: int, restart: bool
) -> Iterator[CellOutcome]:
    context = multiprocessing.get_context("spawn")
    unfinished = {cell.hash: cell for cell in cells}
    begun: set[str] = set()  # started over if that was asked for; after a broken pool these are resumed
    for last_try in (*[False] * POOL_RESTARTS, True):
        messages: Any = context.SimpleQueue()
        pool = ProcessPoolExecutor(workers, context, _start_worker, (messages, os.getpid(), site.plugins))
        try:
            futures: dict[Future[CellOutcome], Cell] = {
                pool.submit(_work, cell, site, restart and cell.hash not in begun): cell for cell in unfinished.values()
            }
            pending = set(futures)
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                while not messages.empty():
                    progress = messages.get()
                    begun.add(progress.cell)
                    on_round(progress)
                for future in done:
                    cell = futures[future]
                    try:
                        outcome = future.result()
                    except BrokenProcessPool:
                        if not last_try:
                            continue
                        reason = "a worker process died (out of memory?); run the suite again to resume"
                        outcome = CellOutcome(cell, run_folder(site.out, cell), reason)
                    del unfinished[cell.hash]
                    yield outcome
        finally:
            pool.shutdown(cancel_futures=True)
        if not unfinished:
            return


def _on_ray(cells: Sequence[Cell], site: Site, on_round: OnRound, restart: bool) -> Iterator[CellOutcome]:
    """Needs a file system that all nodes share for ``site.out``."""
    try:
        import ray
        from ray.util.queue import Empty, Queue
    except ImportError as error:
        raise UserError("executor 'ray' needs the extra: pip install 'fedprompt-bench[ray]'.") from error
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    messages = Queue()
    gpus = 1 if site.device.startswith("cuda") else 0

    def work(cell: Cell) -> CellOutcome:
        for plugin in site.plugins:
            load_plugin(plugin)
        return _attempt(cell, site, messages.put, restart)

    remote_work = ray.remote(num_cpus=site.threads, num_gpus=gpus)(work)
    pending = [remote_work.remote(cell) for cell in cells]
    while pending:
        done, pending = ray.wait(pending, timeout=0.5)
        while True:
            try:
                on_round(messages.get_nowait())
            except (Empty, queue.Empty):
                break
        yield from ray.get(done)
