"""Cells on this machine: in this process, or in worker processes that are dealt its devices."""

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.executors.attempt import attempt
from fedprompt.harness.running.executors.interface import CellOutcome, Executor, LostCell, OnRound, Task
from fedprompt.harness.running.integrity import is_foreign
from fedprompt.harness.running.processes import worker_context
from fedprompt.harness.running.run import RoundProgress
from fedprompt.methods import registry

BEGUN = "begun"  # what a worker sends when it starts a cell


def open_local(environment: RunEnvironment, workers: int) -> Executor:
    """Without processes of its own for a single worker, unless a cell may have to be killed."""
    if workers > 1 or environment.plugins or environment.cell_timeout:
        return WorkerProcesses(environment, workers)
    return ThisProcess(environment)


def device_of(slot: int, devices: Sequence[str]) -> str:
    """The device of the worker in place ``slot``: workers are dealt round-robin, as evenly as possible."""
    return devices[slot % len(devices)]


class ThisProcess(Executor):
    """One cell after another, here."""

    def __init__(self, environment: RunEnvironment) -> None:
        self._environment = replace(environment, device=environment.devices[0])
        self._waiting = deque[Task]()

    def submit(self, tasks: Sequence[Task]) -> None:
        self._waiting.extend(tasks)

    def wait(self, on_round: OnRound) -> Iterator[CellOutcome]:
        if self._waiting:
            cell, restart = self._waiting.popleft()
            yield attempt(cell, self._environment, on_round, restart)


class WorkerProcesses(Executor):
    """Up to ``count`` workers; each keeps its place, and with it its device, when it has to be replaced."""

    def __init__(
        self, environment: RunEnvironment, count: int, start: "Callable[[RunEnvironment], _Worker] | None" = None
    ) -> None:
        self._environment, self._start = environment, start or _Worker
        self._waiting = deque[Task]()
        self._workers: list[_Worker | None] = [None] * count

    def submit(self, tasks: Sequence[Task]) -> None:
        self._waiting.extend(tasks)  # a lost cell goes behind the others: it may need more memory than they leave

    def wait(self, on_round: OnRound) -> Iterator[CellOutcome | LostCell]:
        self._deal()
        workers: dict[Any, tuple[int, _Worker]] = {
            worker.pipe: (slot, worker) for slot, worker in enumerate(self._workers) if worker
        }
        deadlines = [worker.deadline for _, worker in workers.values() if worker.deadline]
        timeout = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
        for pipe in wait(list(workers), timeout):
            slot, worker = workers[pipe]
            message = self._receive(slot, worker)
            if isinstance(message, RoundProgress):
                on_round(message)
            elif message:
                yield message
        for slot, worker in workers.values():
            late = worker.deadline is not None and time.monotonic() >= worker.deadline
            if not worker.cell or self._workers[slot] is not worker:  # idle, or it has just died
                continue
            if late and not worker.pipe.poll():  # else it may have ended in time, while we listened to others
                self._end(slot, worker)
                limit = f"{self._environment.cell_timeout:g} s"
                yield LostCell(worker.cell, f"took longer than --cell-timeout allows ({limit})", retry=False)

    def close(self) -> None:
        for worker in filter(None, self._workers):
            worker.end()

    def _deal(self) -> None:
        """Give waiting cells to idle workers, in new processes if there are none yet."""
        free = [slot for slot, worker in enumerate(self._workers) if worker is None or not worker.cell]
        free.sort(key=lambda slot: self._workers[slot] is None)
        for slot in free[: len(self._waiting)]:
            worker, task = self._workers[slot], self._waiting.popleft()
            if worker and worker.has_run_plugin and not _is_plugin(task.cell):
                self._end(slot, worker)  # who knows what the plugin has left there
                worker = None
            if worker is None:
                device = device_of(slot, self._environment.devices)
                worker = self._workers[slot] = self._start(replace(self._environment, device=device))
            worker.run(task)

    def _receive(self, slot: int, worker: "_Worker") -> RoundProgress | CellOutcome | LostCell | None:
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            self._end(slot, worker)
            return LostCell(worker.cell, "killed, or out of memory?") if worker.cell else None
        if message == BEGUN:
            limit = self._environment.cell_timeout
            worker.deadline = time.monotonic() + limit if limit else None
            return None
        if isinstance(message, CellOutcome):
            worker.cell = worker.deadline = None
            if message.error and worker.has_run_plugin:  # a plugin that failed may have left anything behind
                self._end(slot, worker)
        progress_or_outcome: RoundProgress | CellOutcome = message
        return progress_or_outcome

    def _end(self, slot: int, worker: "_Worker") -> None:
        worker.end()
        self._workers[slot] = None


def _is_plugin(cell: Cell) -> bool:
    """Also of a method that this process does not know."""
    return cell.method not in registry() or is_foreign(registry().get(cell.method))


def attempt_apart(task: Task, environment: RunEnvironment, on_round: OnRound) -> CellOutcome | LostCell:
    """`attempt` in a process of its own: for cells that may have to be killed, or whose caller handles signals."""
    with WorkerProcesses(environment, 1) as worker:
        worker.submit([task])
        while True:
            for ended in worker.wait(on_round):
                return ended


class _Worker:
    """A process that runs one cell after another. Its pipe brings rounds and outcomes, and ends when the process dies.

    Each has its own pipe: a process that is killed while it writes to a shared queue blocks all others.
    """

    def __init__(self, environment: RunEnvironment) -> None:
        context = worker_context()
        self.pipe, theirs = context.Pipe()
        arguments = theirs, environment, dict(os.environ)
        self.process = context.Process(target=_serve, args=arguments, daemon=True)  # type: ignore[attr-defined]
        self.cell: Cell | None = None
        self.deadline: float | None = None  # of the cell, on the monotonic clock
        self.has_run_plugin = False
        resource_tracker.ensure_running()  # else `start` starts it, which unblocks the signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: Ctrl-C is for the parent alone
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        theirs.close()

    def run(self, task: Task) -> None:
        self.cell = task.cell
        self.has_run_plugin |= _is_plugin(task.cell)
        with suppress(OSError):  # it is dead, which reading the pipe will tell
            self.pipe.send(task)

    def end(self) -> None:
        """At once: what a cell has done is in its checkpoint."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(pipe: "Connection[Any, Any]", environment: RunEnvironment, variables: dict[str, str]) -> None:
    """``variables`` are the parent's: the process that this one was copied from may be older than its settings."""
    os.environ.clear()
    os.environ.update(variables)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    while True:
        cell, restart = pipe.recv()
        pipe.send(BEGUN)
        pipe.send(attempt(cell, environment, pipe.send, restart))


def _die_with_parent() -> None:
    """A worker whose parent was killed would go on writing to a folder that the next call wants to resume."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
