"""Runs many cells: in this process, in several, or on a Ray cluster. Which one does not change a result."""

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
from fedprompt.harness.cells.run import Progress, Site, run_cell
from fedprompt.harness.core.errors import UserError
from fedprompt.methods import load_plugin

EXECUTORS = ("local", "ray")
POOL_RESTARTS = 3  # a worker that the system kills takes its pool along; the cells resume in a new one


@dataclass(frozen=True)
class Outcome:
    """How a cell ended: ``folder`` is finished unless there is an ``error``."""

    cell: Cell
    folder: Path
    error: str = ""
    locked: bool = False  # the error is that another process is running the cell


Report = Callable[[Progress], None]


def execute(
    cells: Sequence[Cell], site: Site, report: Report, workers: int = 1, executor: str = "local", restart: bool = False
) -> Iterator[Outcome]:
    """Yield outcomes as cells end, in any order. A failing cell fails alone."""
    if executor == "ray":
        yield from _on_ray(cells, site, report, restart)
    elif workers == 1:
        for cell in cells:
            yield _attempt(cell, site, report, restart)
    else:
        yield from _in_processes(cells, site, report, workers, restart)


def _attempt(cell: Cell, site: Site, report: Report, restart: bool) -> Outcome:
    folder = run_folder(site.out, cell)
    try:
        if is_locked(folder):  # known before the data are loaded
            raise LockedError(cell)
        run_cell(cell, site, report, restart)
        return Outcome(cell, folder)
    except LockedError as error:  # not a failure of the cell
        return Outcome(cell, folder, str(error), locked=True)
    except UserError as error:
        reason = str(error)
    except Exception as error:  # a method's fault must not take the other cells along; it is kept and shown
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    note_failure(folder, reason)
    return Outcome(cell, folder, reason)


_messages: "multiprocessing.SimpleQueue[Progress] | None" = None


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


def _work(cell: Cell, site: Site, restart: bool) -> Outcome:
    assert _messages is not None
    return _attempt(cell, site, _messages.put, restart)


def _in_processes(cells: Sequence[Cell], site: Site, report: Report, workers: int, restart: bool) -> Iterator[Outcome]:
    context = multiprocessing.get_context("spawn")
    left = {cell.hash: cell for cell in cells}
    for last_try in (*[False] * POOL_RESTARTS, True):
        messages: Any = context.SimpleQueue()
        pool = ProcessPoolExecutor(workers, context, _start_worker, (messages, os.getpid(), site.plugins))
        try:
            futures: dict[Future[Outcome], Cell] = {
                pool.submit(_work, cell, site, restart): cell for cell in left.values()
            }
            pending = set(futures)
            while pending:
                done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                while not messages.empty():
                    report(messages.get())
                for future in done:
                    cell = futures[future]
                    try:
                        outcome = future.result()
                    except BrokenProcessPool:
                        if not last_try:
                            continue
                        reason = "a worker process died (out of memory?); run the suite again to resume"
                        outcome = Outcome(cell, run_folder(site.out, cell), reason)
                    del left[cell.hash]
                    yield outcome
        finally:
            pool.shutdown(cancel_futures=True)
        if not left:
            return
        restart = False  # what was started over has checkpoints of its own now


def _on_ray(cells: Sequence[Cell], site: Site, report: Report, restart: bool) -> Iterator[Outcome]:
    """Needs a file system that all nodes share for ``site.out``."""
    try:
        import ray
        from ray.util.queue import Empty, Queue
    except ImportError as error:
        raise UserError("executor 'ray' needs the extra: pip install 'fedprompt-bench[ray]'.") from error
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    messages = Queue()
    gpus = 1 if site.device.startswith("cuda") else 0

    @ray.remote(num_cpus=site.threads, num_gpus=gpus)
    def work(cell: Cell) -> Outcome:
        for plugin in site.plugins:
            load_plugin(plugin)
        return _attempt(cell, site, messages.put, restart)

    pending = [work.remote(cell) for cell in cells]
    while pending:
        done, pending = ray.wait(pending, timeout=0.5)
        while True:
            try:
                report(messages.get_nowait())
            except (Empty, queue.Empty):
                break
        yield from ray.get(done)
