"""How fast this machine is: each kind of pass of each method, timed on blank images with random weights.

All workers measure at once, so that they are in each other's way as much as they will be in the run.
"""

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.core.errors import UserError
from fedprompt.core.fields import is_rate
from fedprompt.core.interrupts import Interrupted, ctrl_c_apart, one_line
from fedprompt.core.progress import track
from fedprompt.harness.planning.cost import Classes, Cost, cost, meta_method, passes, shape_backbone, shape_federation
from fedprompt.harness.recording.tracker import Tracker, default_uri
from fedprompt.harness.running.cell import make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.processes import worker_context
from fedprompt.harness.running.run import run_cell
from fedprompt.methods import Method, load_plugin, registry

BUDGET = 20.0  # seconds of all timing together; what would take longer is timed with fewer images
TURNS = 3  # of a pass, the first of which may be slow
WARM_UP = 1.0  # seconds


@dataclass(frozen=True)
class Job:
    """A method whose passes are to be counted and timed."""

    method: str
    params: dict[str, Any]
    backbone: BackboneSpec
    classes: Classes
    batch_size: int
    images: dict[str, int]  # of all its runs, by kind of pass: what matters most is timed first
    step: tuple[int, int]  # clients in the largest step, and images of each
    num_clients: int = 1  # of the federation
    recipe: dict[str, Any] = field(default_factory=dict)  # fields of the protocol by which a step costs more or less

    @property
    def family(self) -> str:
        """Equal for jobs that differ in the numbers of classes and clients and in learning rates alone."""
        return json.dumps([self.method, structure(self.params), astuple(self.backbone), self.batch_size, self.recipe])

    def build(self, device: str = "meta", clients: int = 1) -> Method:
        """The method for the federation or, if that is more, for ``clients``."""
        backbone, members = shape_backbone(self.backbone, device), max(clients, self.num_clients)
        reads = self.recipe.get("head_input", "raw")
        return meta_method(self.method, backbone, self.classes, members, head_input=reads, **self.params)


def structure(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that a pass can cost more or less by: all but learning rates."""
    return {name: value for name, value in sorted(params.items()) if not is_rate(name)}


@dataclass(frozen=True)
class PassTime:
    """Seconds of a pass: a fixed part, and a part for each image."""

    step: float
    image: float


@dataclass(frozen=True)
class Price:
    cost: Cost
    lines: dict[str, PassTime] = field(default_factory=dict)  # by kind of pass; empty if nothing was timed


@dataclass(frozen=True)
class Overhead:
    """Seconds that no FLOPs explain: of a suite's start, of a cell (files, partition, MLflow), of a round."""

    start: float = 0.0
    cell: float = 0.0
    round: float = 0.0


def prices(jobs: Sequence[Job], environment: RunEnvironment, workers: int, timed: bool) -> tuple[list[Price], float]:
    """Count every job and, if wanted, time it; also the seconds that the workers took to start."""
    costs = [count_passes(job) for job in track(jobs, "counting FLOPs")]
    if not timed:
        return [Price(counted) for counted in costs], 0.0
    if workers == 1:
        return _timed(map, jobs, costs, environment, workers), 0.0
    with ProcessPoolExecutor(workers, worker_context(), _plugins, (environment.plugins,)) as pool:
        begun = time.perf_counter()
        list(pool.map(time.sleep, [0.1] * workers))
        started = time.perf_counter() - begun
        return _timed(pool.map, jobs, costs, environment, workers), started


def _timed(
    run: Any, jobs: Sequence[Job], costs: Sequence[Cost], environment: RunEnvironment, workers: int
) -> list[Price]:
    """Jobs of one family are timed as one; their seconds per image follow the FLOPs."""
    families: dict[tuple[object, ...], list[int]] = {}
    for index, job in enumerate(jobs):
        families.setdefault((job.family, tuple(sorted(job.images))), []).append(index)
    dearest = [max(members, key=lambda index: sum(costs[index].flops.values())) for members in families.values()]
    needs = [sum(costs[index].flops.values()) * math.prod(jobs[index].step) / costs[index].images for index in dearest]
    # Half of the time is shared equally, for small passes are slow beyond their FLOPs.
    shares = [BUDGET * workers * (1 / len(dearest) + need / sum(needs)) / 2 for need in needs]
    arguments = (
        [jobs[index] for index in dearest],
        [costs[index] for index in dearest],
        [environment] * len(dearest),
        shares,
    )
    timings = track(run(time_passes, *arguments), "timing", total=len(dearest))
    job_prices: dict[int, Price] = {}
    for members, index, lines in zip(families.values(), dearest, timings, strict=True):
        job_prices |= {member: Price(costs[member], _scaled(lines, costs[index], costs[member])) for member in members}
    return [job_prices[index] for index in range(len(jobs))]


def _scaled(lines: Mapping[str, PassTime], timed: Cost, other: Cost) -> dict[str, PassTime]:
    """Seconds per image in proportion to FLOPs; those of a step stay."""
    ratios = {kind: other.flops[kind] / timed.flops[kind] if timed.flops[kind] else 1.0 for kind in lines}
    return {kind: PassTime(line.step, line.image * ratios[kind]) for kind, line in lines.items()}


def _plugins(files: Sequence[str]) -> None:
    for file in files:
        load_plugin(file)


_COUNTED: dict[tuple[object, ...], Cost] = {}


def count_passes(job: Job) -> Cost:
    """Counted once for jobs of a family with equal classes and clients, such as a suite's cells and its trials."""
    key = (registry().get(job.method), job.family, job.classes, job.num_clients)
    known = _COUNTED.get(key)
    if known is None or not known.flops.keys() >= job.images.keys():
        with _named(job):
            _COUNTED[key] = known = _count_passes(job)
    return known


@contextmanager
def _named(job: Job) -> Iterator[None]:
    """A method that tries to end the process is named, and ends only what asked for its cost."""
    try:
        with ctrl_c_apart():
            yield
    except Interrupted:
        raise
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        reason = f"method {job.method!r} tried to end the process while its costs were measured"
        raise UserError(f"{reason}: {one_line(error)}") from error


def _count_passes(job: Job) -> Cost:
    return cost(job.build(), 1, job.batch_size, job.images, **job.recipe)


def time_passes(job: Job, counted: Cost, environment: RunEnvironment, share: float) -> dict[str, PassTime]:
    """Time the job's passes within about ``share`` seconds, the dearest kind first.

    Its size grows until the next would take too long, which shows how fast the machine is. Of every other kind the
    two largest sizes are timed that should fit; where none does, it costs its FLOPs at the best speed seen.
    """
    with _named(job):
        return _time_passes(job, counted, environment, share)


def _time_passes(job: Job, counted: Cost, environment: RunEnvironment, share: float) -> dict[str, PassTime]:
    torch.set_num_threads(environment.threads)
    clients, batch = job.step
    sizes = sorted({*((1, min(4**power, batch)) for power in range(6)), (1, batch), (clients, batch)})
    method = job.build(environment.devices[0], clients)
    works = {k * b: _works(method, k, b, job.recipe) for k, b in sizes}
    flops = {kind: counted.flops[kind] / counted.images for kind in job.images}  # of an image
    begun, speed = time.perf_counter(), 0.0
    lines: dict[str, PassTime] = {}
    for kind in sorted(flops, key=lambda kind: flops[kind] * job.images[kind], reverse=True):
        points: list[tuple[int, float]] = []
        left = share - (time.perf_counter() - begun)
        fitting = [size for size in works if flops[kind] * size <= speed * left / 4][-2:] if lines else list(works)
        for size in fitting:
            left = share - (time.perf_counter() - begun)
            if points and points[-1][1] / points[-1][0] * size > left:
                break
            points.append((size, _seconds(works[size][kind], left / 8, environment.devices[0])))
            speed = max(speed, flops[kind] * size / points[-1][1])
        lines[kind] = line(points, flops[kind] / speed if speed else 0.0)
    return lines


def line(points: Sequence[tuple[int, float]], image: float) -> PassTime:
    """Through the last two of (images, seconds), neither part negative; one point tells the part of any pass.

    ``image`` are the seconds of an image at the best speed seen.
    """
    if not points:
        return PassTime(0.0, image)
    size, seconds = points[-1]
    if len(points) > 1:
        image = max(0.0, seconds - points[-2][1]) / (size - points[-2][0])
    image = min(image, seconds / size)
    return PassTime(seconds - image * size, image)


def measure_overhead(dataset: str) -> Overhead:
    """Real cells that train nothing, run and recorded in a folder that is thrown away."""
    spec = BackboneSpec("micro-vit", "random", 32)
    with tempfile.TemporaryDirectory() as folder:
        environment = RunEnvironment(out=Path(folder))
        tracker = Tracker(default_uri(environment.out), environment.out)

        def run(rounds: int, seed: int) -> tuple[float, list[float]]:
            """Seconds of a cell, and those of each round after its first."""
            begun, ends = time.perf_counter(), list[float]()
            protocol = {"rounds": rounds, "epochs": 0, "last": 1, "eval_every": rounds}
            cell = make_cell("fedvpt", dataset, "disjoint:clients=1,shots=1,test_shots=1", spec, seed, {}, protocol)
            tracker.finish(run_cell(cell, environment, lambda _: ends.append(time.perf_counter())))
            return time.perf_counter() - begun, [after - before for before, after in pairwise(ends)]

        (first, _), (second, rounds) = run(1, 0), run(11, 1)
    each = statistics.median(rounds)
    cell = max(0.0, second - sum(rounds) - each)
    return Overhead(max(0.0, first - cell - each), cell, each)


def _works(method: Method, clients: int, batch: int, recipe: Mapping[str, Any]) -> dict[str, Callable[[], object]]:
    federation = shape_federation(method, clients, batch, **recipe)
    state = federation.start()
    return passes(federation, state, federation.theta(state, federation.members)[1])


def _seconds(work: Callable[[], object], limit: float, device: str) -> float:
    """The best of a few turns, as many as fit into ``limit``; one in any case, and a second if the first was short."""
    turns: list[float] = []
    while len(turns) < TURNS and sum(turns) + max(turns, default=0.0) <= max(limit, WARM_UP if len(turns) < 2 else 0.0):
        begun = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        turns.append(time.perf_counter() - begun)
    return min(turns)
