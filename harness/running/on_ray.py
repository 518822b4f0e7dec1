"""Cells on a Ray cluster: the one at $RAY_ADDRESS or of this machine, else one that is started for the occasion.

Nodes that see the results folder work in it. Others work in their own cache, and a finished run folder comes back with
the task's answer, through Ray's object store.
"""

import logging
import os
import queue
import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fedprompt.core.errors import UserError
from fedprompt.core.files import cache_dir, write_atomic
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.executor import CellOutcome, Tries, attempt
from fedprompt.harness.running.folder import DONE, LockedError, open_folder, run_folder
from fedprompt.harness.running.run import RoundProgress
from fedprompt.harness.running.site import Site

if TYPE_CHECKING:
    from ray.util.queue import Queue

Files = Mapping[str, bytes]
CHECK = "start one with `ray start --head`, correct RAY_ADDRESS, or unset it to use this machine alone."


def execute_on_ray(cells: Sequence[Cell], site: Site, tries: Tries) -> Iterator[CellOutcome]:
    with _cluster() as ray, _sign(site.out) as sign:
        from ray.exceptions import RayError
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        site = _on_nodes(site, ray.cluster_resources())
        needs = {"num_cpus": site.threads, "num_gpus": site.gpus_per_cell if site.device == "cuda" else 0}
        _require_a_node(ray.nodes(), needs)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        messages = Queue(actor_options={"scheduling_strategy": here})  # a node that is lost must not take it along
        work = ray.remote(**needs, max_retries=0)(_work)  # `tries` counts: a retry resumes instead of starting over
        waiting, running = deque(cells), dict[Any, Cell]()
        try:
            while waiting or running:
                while waiting:
                    cell = waiting.popleft()
                    running[work.remote(cell, site, sign, messages, tries.starts_over(cell))] = cell
                done, _ = ray.wait(list(running), timeout=0.5)
                for progress in _arrived(messages):
                    tries.round(progress)
                for task in done:
                    cell = running.pop(task)
                    outcome: CellOutcome | None
                    try:
                        outcome = _received(site, *ray.get(task))
                    except RayError as error:
                        outcome = tries.died(cell, type(error).__name__)
                    if outcome is None:
                        waiting.append(cell)
                    else:
                        yield outcome
        finally:
            for task in running:
                with suppress(RayError):
                    ray.cancel(task, force=True)


@contextmanager
def _cluster() -> Iterator[Any]:
    """Ray, connected."""
    try:
        import ray
    except ImportError as error:
        raise UserError("executor 'ray' needs the extra: pip install 'fedprompt-bench[ray]'.") from error
    connected = ray.is_initialized()
    if not connected:
        _require_answer(os.environ.get("RAY_ADDRESS", ""))
    try:
        ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise UserError(f"cannot connect to Ray ({str(error).strip().partition(chr(10))[0][:200]}); {CHECK}") from error
    try:
        yield ray
    except ray.exceptions.RayError as error:
        raise UserError(
            f"the Ray cluster stopped answering ({type(error).__name__}); when it is back, the same command goes on."
        ) from error
    finally:
        if not connected:
            ray.shutdown()


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


def _on_nodes(site: Site, resources: Mapping[str, float]) -> Site:
    """``site`` as other processes can use it: a node does not start in the folder that paths are relative to."""
    if site.device not in ("auto", "cpu", "cuda"):
        raise UserError(f"device {site.device!r} names a device of one machine; on a cluster use cpu, cuda or auto.")
    device = "cuda" if resources.get("GPU") else "cpu"
    return replace(
        site,
        out=site.out.resolve(),
        data_root=site.data_root.resolve() if site.data_root else None,
        weights=str(Path(site.weights).resolve()) if site.weights else None,
        device=device if site.device == "auto" else site.device,
    )


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


def _work(cell: Cell, site: Site, sign: str, messages: "Queue", restart: bool) -> tuple[CellOutcome, Files | None]:
    """What a node does. The files are those of the finished folder if the node does not share the disk."""
    from ray.exceptions import RayError

    shared = (site.out / sign).exists()
    place = site if shared else replace(site, out=cache_dir() / "away")

    def report(progress: RoundProgress) -> None:
        with suppress(RayError):  # bars and curves are not worth a cell; the end of it will tell
            messages.put(progress)

    outcome = attempt(cell, place, report, restart)
    if shared or outcome.error:
        return outcome, None
    return outcome, {path.name: path.read_bytes() for path in outcome.folder.iterdir() if path.name != ".lock"}


def _received(site: Site, outcome: CellOutcome, files: Files | None) -> CellOutcome:
    """The outcome with the folder where it belongs, made of ``files`` if the node could not write there."""
    folder = run_folder(site.out, outcome.cell)
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
