"""How fast this machine is: each kind of pass of each method, timed on blank images with random weights.

All workers measure at once, so that they are in each other's way as much as they will be in the run.
"""

import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from fedprompt.harness.cells.cell import make_cell
from fedprompt.harness.cells.run import run_cell
from fedprompt.harness.cells.site import Site
from fedprompt.harness.core.progress import track
from fedprompt.harness.model.backbone import FrozenViT
from fedprompt.harness.model.weights import BackboneSpec, load_backbone
from fedprompt.harness.planning.cost import Cost, cost, meta_method, passes, shape_federation
from fedprompt.harness.tracking.tracker import Tracker, default_uri
from fedprompt.methods import load_plugin

BUDGET = 45.0  # seconds of all timing together; what would take longer is timed with fewer images
TURNS = 3  # of a pass, the first of which may be slow
WARM_UP = 1.0  # seconds


@dataclass(frozen=True)
class Job:
    """A method whose passes are to be counted and timed."""

    method: str
    params: dict[str, Any]
    backbone: BackboneSpec
    classes: int
    batch_size: int
    images: dict[str, int]  # of all its runs, by kind of pass: what matters most is timed first
    step: tuple[int, int]  # clients in the largest step, and images of each


@dataclass(frozen=True)
class Line:
    """Seconds of a pass: those of any, and those of each image."""

    step: float
    image: float


@dataclass(frozen=True)
class Price:
    cost: Cost
    lines: dict[str, Line] = field(default_factory=dict)  # by kind of pass; empty if nothing was timed


@dataclass(frozen=True)
class Overhead:
    """Seconds that no FLOPs explain: of a suite's start, of a cell (files, partition, MLflow), of a round."""

    start: float = 0.0
    cell: float = 0.0
    round: float = 0.0


def prices(jobs: Sequence[Job], site: Site, workers: int, timed: bool) -> tuple[list[Price], float]:
    """Count every job and, if wanted, time it; also the seconds that the workers took to start."""
    if workers == 1:
        return _prices(map, jobs, site, workers, timed), 0.0
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _plugins, (site.plugins,)) as pool:
        begun = time.perf_counter()
        list(pool.map(time.sleep, [0.1] * workers))
        started = time.perf_counter() - begun
        return _prices(pool.map, jobs, site, workers, timed), started


def _prices(run: Any, jobs: Sequence[Job], site: Site, workers: int, timed: bool) -> list[Price]:
    costs = list(track(run(count_passes, jobs), "counting FLOPs", total=len(jobs)))
    if not timed:
        return [Price(found) for found in costs]
    steps = [math.prod(job.step) / found.images for job, found in zip(jobs, costs, strict=True)]
    needs = [sum(found.flops.values()) * step for found, step in zip(costs, steps, strict=True)]
    # Half of the time is shared equally, for small passes are slow beyond their FLOPs.
    shares = [BUDGET * workers * (1 / len(jobs) + need / sum(needs)) / 2 for need in needs]
    lines = run(time_passes, jobs, costs, [site] * len(jobs), shares)
    return list(map(Price, costs, track(lines, "timing", total=len(jobs))))


def _plugins(files: Sequence[str]) -> None:
    for file in files:
        load_plugin(file)


def count_passes(job: Job) -> Cost:
    method = meta_method(job.method, _backbone(job.backbone, "meta"), job.classes, **job.params)
    return cost(method, 1, job.batch_size, job.images)


def time_passes(job: Job, counted: Cost, site: Site, share: float) -> dict[str, Line]:
    """Time the job's passes within about ``share`` seconds, the dearest kind first.

    Its size grows until the next would take too long, which shows how fast the machine is. Of every other kind the
    two largest sizes are timed that should fit; where none does, it costs its FLOPs at the best speed seen.
    """
    torch.set_num_threads(site.threads)
    clients, batch = job.step
    sizes = sorted({*((1, min(4**power, batch)) for power in range(6)), (1, batch), (clients, batch)})
    method = meta_method(job.method, _backbone(job.backbone, site.device), job.classes, clients, **job.params)
    works = {k * b: _works(method, k, b) for k, b in sizes}
    flops = {kind: counted.flops[kind] / counted.images for kind in job.images}  # of an image
    begun, speed = time.perf_counter(), 0.0
    lines: dict[str, Line] = {}
    for kind in sorted(flops, key=lambda kind: flops[kind] * job.images[kind], reverse=True):
        points: list[tuple[int, float]] = []
        left = share - (time.perf_counter() - begun)
        fitting = [size for size in works if flops[kind] * size <= speed * left / 4][-2:] if lines else list(works)
        for size in fitting:
            left = share - (time.perf_counter() - begun)
            if points and points[-1][1] / points[-1][0] * size > left:
                break
            points.append((size, _seconds(works[size][kind], left / 8, site.device)))
            speed = max(speed, flops[kind] * size / points[-1][1])
        lines[kind] = line(points, flops[kind] / speed if speed else 0.0)
    return lines


def line(points: Sequence[tuple[int, float]], image: float) -> Line:
    """Through the last two of (images, seconds), neither part negative; one point tells the part of any pass.

    ``image`` are the seconds of an image at the best speed seen.
    """
    if not points:
        return Line(0.0, image)
    size, seconds = points[-1]
    if len(points) > 1:
        image = max(0.0, seconds - points[-2][1]) / (size - points[-2][0])
    image = min(image, seconds / size)
    return Line(seconds - image * size, image)


def measure_overhead(dataset: str) -> Overhead:
    """Real cells that train nothing, run and recorded in a folder that is thrown away."""
    spec = BackboneSpec("micro-vit", "random", 32)
    with tempfile.TemporaryDirectory() as folder:
        site = Site(out=Path(folder))
        tracker = Tracker(default_uri(site.out), site.out)

        def run(rounds: int, seed: int) -> float:
            begun = time.perf_counter()
            protocol = {"rounds": rounds, "epochs": 0, "last": 1, "eval_every": rounds}
            cell = make_cell("fedvpt", dataset, "disjoint:clients=1,shots=1,test_shots=1", spec, seed, {}, protocol)
            tracker.finish(run_cell(cell, site))
            return time.perf_counter() - begun

        first, short, long = run(1, 0), run(1, 1), run(11, 2)
    each = max(0.0, (long - short) / 10)
    return Overhead(max(0.0, first - short), max(0.0, short - each), each)


@lru_cache(maxsize=2)
def _backbone(spec: BackboneSpec, device: str) -> FrozenViT:
    return load_backbone(replace(spec, weights="random"), device=device)


def _works(method: Any, clients: int, batch: int) -> dict[str, Callable[[], Any]]:
    federation = shape_federation(method, clients, batch)
    state = federation.start()
    return passes(federation, state, federation.theta(state, federation.members)[1])


def _seconds(work: Callable[[], Any], limit: float, device: str) -> float:
    """The best of a few turns, as many as fit into ``limit``; one in any case, and a second if the first was short."""
    turns: list[float] = []
    while len(turns) < TURNS and sum(turns) + max(turns, default=0.0) <= max(limit, WARM_UP if len(turns) < 2 else 0.0):
        begun = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        turns.append(time.perf_counter() - begun)
    return min(turns)
