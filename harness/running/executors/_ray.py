"""Cells on a Ray cluster: the one at $RAY_ADDRESS or of this machine, else one that is started for the occasion.

Nodes that see the results folder work in it. Others work in their own cache, and a finished run folder comes back with
the task's answer, through Ray's object store.
"""

import logging
import os
import queue
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fedprompt.core.errors import UserError
from fedprompt.core.files import cache_dir, write_atomic
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.executors._local import attempt_apart
from fedprompt.harness.running.executors.attempt import attempt
from fedprompt.harness.running.executors.interface import CellOutcome, Executor, LostCell, OnRound, Task
from fedprompt.harness.running.folder import DONE, LockedError, open_folder, run_folder
from fedprompt.harness.running.run import RoundProgress

if TYPE_CHECKING:
    from ray.util.queue import Queue

Files = Mapping[str, bytes]
CHECK = "start one with `ray start --head`, correct RAY_ADDRESS, or unset it to use this machine alone."


class RayExecutor(Executor):
    """One task per cell. Ray itself never tries a task again: a cell that is submitted again resumes."""

    def __init__(self, environment: RunEnvironment, _workers: int) -> None:
        """The number of workers is not used: the cluster runs as many cells as it has room for."""
        with ExitStack() as opening:
            self._ray = opening.enter_context(_cluster())
            self._sign = opening.enter_context(_sign(environment.out))
            from ray.util.queue import Queue
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            ray = self._ray
            with _answering(ray):
                self._environment = _on_nodes(environment, ray.cluster_resources())
                on_gpus = self._environment.device == "cuda"
                needs = {"num_cpus": environment.threads, "num_gpus": environment.gpus_per_cell if on_gpus else 0}
                _require_a_node(ray.nodes(), needs)
                here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
                # Here: a node that is lost must not take it along.
                self._messages = Queue(actor_options={"scheduling_strategy": here})
                self._work = ray.remote(**needs, max_retries=0)(_work)
            self._running = dict[Any, Cell]()
            self._open = opening.pop_all()

    def submit(self, tasks: Sequence[Task]) -> None:
        with _answering(self._ray):
            for cell, restart in tasks:
                task = self._work.remote(cell, self._environment, self._sign, self._messages, restart)
                self._running[task] = cell

    def wait(self, on_round: OnRound) -> Iterator[CellOutcome | LostCell]:
        with _answering(self._ray):
            done, _ = self._ray.wait(list(self._running), timeout=0.5)
            arrived = list(_arrived(self._messages))
        for progress in arrived:
            on_round(progress)
        for task in done:
            cell = self._running.pop(task)
            try:
                ended, files = self._ray.get(task)
            except self._ray.exceptions.RayError as error:
                yield LostCell(cell, type(error).__name__)
            else:
                yield ended if isinstance(ended, LostCell) else _received(self._environment, ended, files)

    def close(self) -> None:
        with self._open:
            for task in self._running:
                with suppress(self._ray.exceptions.RayError):
                    self._ray.cancel(task, force=True)


@contextmanager
def _cluster() -> Iterator[Any]:
    """Ray, connected."""
    try:
        import ray
    except ImportError as error:
        raise UserError("executor 'ray' needs the extra; in the checkout: pip install -e '.[ray]'.") from error
    connected = ray.is_initialized()
    if not connected:
        _require_answer(os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise UserError(f"cannot connect to Ray ({str(error).strip().partition(chr(10))[0][:200]}); {CHECK}") from error
    try:
        yield ray
    finally:
        if not connected:
            ray.shutdown()


@contextmanager
def _answering(ray: Any) -> Iterator[None]:
    try:
        yield
    except ray.exceptions.RayError as error:
        raise UserError(
            f"the Ray cluster stopped answering ({type(error).__name__}); when it is back, the same command goes on."
        ) from error


def _require_answer(address: str) -> None:
    """Ray itself tries for minutes before it gives up."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:  # none, `auto` or `local`: Ray looks on this machine
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise UserError(f"no Ray cluster answers at RAY_ADDRESS={address} ({error}); {CHECK}") from error


@contextmanager
def _sign(out: Path) -> Iterator[str]:
    """The name of a file in ``out``: a node that sees it there shares the disk."""
    sign = out / f".ray-{uuid4().hex}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        sign.touch()
    except OSError as error:
        raise UserError(f"cannot write to {out}: {error.strerror}; choose another folder with --out DIR.") from error
    try:
        yield sign.name
    finally:
        sign.unlink(missing_ok=True)


def _on_nodes(environment: RunEnvironment, resources: Mapping[str, float]) -> RunEnvironment:
    """``environment`` as the cluster's processes can use it."""
    if environment.device not in ("auto", "cpu", "cuda"):
        raise UserError(
            f"device {environment.device!r} names a device of one machine; on a cluster use cpu, cuda or auto."
        )
    device = "cuda" if resources.get("GPU") else "cpu"
    return replace(environment.resolved(), device=device if environment.device == "auto" else environment.device)


def _require_a_node(nodes: Sequence[Mapping[str, Any]], needs: Mapping[str, float]) -> None:
    """Ray would wait for ever for a node that is large enough."""
    cpus, gpus = needs["num_cpus"], needs["num_gpus"]
    sizes = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(size.get("CPU", 0) >= cpus and size.get("GPU", 0) >= gpus for size in sizes):
        most = {kind: max((size.get(kind, 0) for size in sizes), default=0) for kind in ("CPU", "GPU")}
        raise UserError(
            f"a cell needs {cpus} CPUs and {gpus:g} GPUs, but the largest nodes of the Ray cluster have "
            f"{most['CPU']:g} and {most['GPU']:g}; lower --threads or --gpus-per-cell, or pass --device cpu."
        )


def _work(
    cell: Cell, environment: RunEnvironment, sign: str, messages: "Queue", restart: bool
) -> tuple[CellOutcome | LostCell, Files | None]:
    """What a node does. The files are those of the finished folder if the node does not share the disk."""
    from ray.exceptions import RayError

    shared = (environment.out / sign).exists()
    place = environment if shared else replace(environment, out=cache_dir() / "away")

    def report(progress: RoundProgress) -> None:
        with suppress(RayError):  # bars and curves are not worth a cell; the end of it will tell
            messages.put(progress)

    limited = environment.cell_timeout is not None
    ended = attempt_apart(Task(cell, restart), place, report) if limited else attempt(cell, place, report, restart)
    if shared or isinstance(ended, LostCell) or ended.error:
        return ended, None
    return ended, {path.name: path.read_bytes() for path in ended.folder.iterdir() if path.name != ".lock"}


def _received(environment: RunEnvironment, outcome: CellOutcome, files: Files | None) -> CellOutcome:
    """The outcome with the folder where it belongs, made of ``files`` if the node could not write there."""
    folder = run_folder(environment.out, outcome.cell)
    if files is not None:
        try:
            with open_folder(folder, outcome.cell, restart=True):
                for name in sorted(files, key=lambda name: name == DONE):  # the marker comes last
                    write_atomic(folder / name, files[name])
        except LockedError as error:
            return CellOutcome(outcome.cell, folder, str(error), locked=True)
    return replace(outcome, folder=folder)


def _arrived(messages: "Queue") -> Iterator[RoundProgress]:
    from ray.util.queue import Empty

    get: Callable[[], RoundProgress] = messages.get_nowait
    while True:
        try:
            yield get()
        except (Empty, queue.Empty):
            return
