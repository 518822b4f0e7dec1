"""What a suite costs before anyone runs it: images seen, FLOPs, memory, bytes sent and time of every cell.

Images are counted along the rules of the federation and of the evaluation, on the real partition, with the real
selection of every round. FLOPs are what `cost` counts for an image of each kind of pass, times these images.
"""

import hashlib
import heapq
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from fedprompt.datasets import Dataset, Partition, make_partition, parse_partition
from fedprompt.harness.cells.cell import Cell
from fedprompt.harness.cells.folder import is_done, run_folder
from fedprompt.harness.cells.site import Site
from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.core.fields import build
from fedprompt.harness.core.progress import track
from fedprompt.harness.federation.clients import ClientData, Split
from fedprompt.harness.federation.evaluation import finetune_epochs
from fedprompt.harness.federation.rounds import Federation
from fedprompt.harness.model.features import CHUNK
from fedprompt.harness.planning.calibration import Job, Overhead, Price, measure_overhead, prices
from fedprompt.harness.planning.cost import TRAIN, Cost, meta_backbone
from fedprompt.harness.planning.data import Labelled, labelled
from fedprompt.methods import Method, Stage, Task, registry

_backbone = cache(meta_backbone)
EMBEDDED = ("glyph-domains", "glyph-100")


@dataclass(frozen=True)
class Tally:
    """What a run goes through."""

    images: Mapping[str, int]  # images passed, by kind of pass (see `cost.passes`)
    steps: Mapping[str, int]  # batches of a stack of clients
    visits: int  # of a client in a round: as many downloads and uploads
    step: tuple[int, int] = (1, 1)  # clients in the largest training step, and images of all of them


@dataclass(frozen=True)
class CellPlan:
    """A cell and what it costs; ``seconds`` are those of one worker, none if the cell is finished."""

    cell: Cell
    tally: Tally
    cost: Cost
    finished: bool = False
    seconds: float = math.nan

    @property
    def images(self) -> int:
        return sum(self.tally.images.values())

    @property
    def flops(self) -> int:
        return sum(count * self.cost.flops[kind] for kind, count in self.tally.images.items()) // self.cost.images

    @property
    def activation_bytes(self) -> int:
        """What autograd keeps in the largest training step."""
        return self.cost.saved_bytes * self.tally.step[1] // self.cost.images

    @property
    def bytes_sent(self) -> int:
        """Of all clients in all rounds, both ways."""
        return self.tally.visits * (self.cost.bytes_down + self.cost.bytes_up)


@dataclass(frozen=True)
class Plan:
    """The cells of a suite, each once, and how long those that are left take together."""

    suite: Suite
    cells: Mapping[str, CellPlan]  # by hash
    seconds: float
    notes: tuple[str, ...] = ()

    def frame(self) -> pd.DataFrame:
        """A line for each setting and row of a table, seeds together; a cell counts where it is shown first."""
        counted: set[str] = set()
        lines = []
        for setting in self.suite.settings:
            for row in setting.rows:
                hashes = {self.suite.cell(setting, row, seed).hash for seed in self.suite.seeds}
                shown = [self.cells[name] for name in hashes]
                new = [self.cells[name] for name in hashes - counted]
                counted |= hashes
                lines.append(
                    {
                        "table": setting.table,
                        "setting": setting.label,
                        "row": row.key,
                        "title": row.title,
                        "cells": len(new),
                        "elsewhere": len(shown) - len(new),  # counted in a setting above
                        "finished": sum(cell.finished for cell in new),
                        "images": sum(cell.images for cell in new),
                        "flops": sum(cell.flops for cell in new),
                        "activation_bytes": max(cell.activation_bytes for cell in shown),
                        "bytes_down": shown[0].cost.bytes_down,  # of a client in a round
                        "bytes_up": shown[0].cost.bytes_up,
                        "bytes_sent": sum(cell.bytes_sent for cell in new),
                        "seconds": sum(cell.seconds for cell in new),
                    }
                )
        return pd.DataFrame(lines)


def plan_suite(suite: Suite, site: Site, workers: int = 1, flops: float | None = None) -> Plan:
    """Count all cells of ``suite``; ``flops`` a second are given, or time is measured here with ``workers``."""
    cells = suite.cells()
    data = {name: labelled(name, site.data_root) for name in dict.fromkeys(cell.dataset for cell in cells)}
    tallies = tally_cells(cells, {name: found.dataset for name, found in data.items()})
    keys = [_key(cell, data[cell.dataset]) for cell in cells]
    jobs: dict[str, Job] = {}
    for key, cell, tally in zip(keys, cells, tallies, strict=True):
        jobs[key] = _joined(jobs.get(key), cell, data[cell.dataset].dataset.num_classes, tally)
    done = [is_done(run_folder(site.out, cell)) for cell in cells]
    timed = flops is None and not all(done)
    priced, started = prices(list(jobs.values()), site, workers, timed)
    by_key = dict(zip(jobs, priced, strict=True))
    overhead = _overhead(data) if timed else Overhead()
    planned = {}
    for key, cell, tally, finished in zip(keys, cells, tallies, done, strict=True):
        found = CellPlan(cell, tally, by_key[key].cost, finished)
        seconds = 0.0 if finished else found.flops / flops if flops else _seconds(found, by_key[key], overhead)
        planned[cell.hash] = replace(found, seconds=seconds)
    left = [found.seconds for found in planned.values() if not found.finished]
    together = sum(left) if not timed else makespan(left, workers) + started + overhead.start
    return Plan(suite, planned, together, tuple(found.note for found in data.values() if found.note))


# -- images ----------------------------------------------------------------------------------------------------------


def tally_cells(cells: Sequence[Cell], datasets: Mapping[str, Dataset]) -> list[Tally]:
    """Count ``cells`` on their real partitions; frozen features that one of them has left are not computed again."""
    partitions: dict[tuple[object, ...], Partition] = {}
    kept: set[tuple[object, ...]] = set()
    tallies = []
    for cell in track(cells, "counting images"):
        dataset, fraction = datasets[cell.dataset], cell.protocol.val_fraction
        dealt = (cell.dataset, cell.partition, cell.seed, fraction)
        if dealt not in partitions:
            partitions[dealt] = make_partition(parse_partition(cell.partition), dataset, cell.seed, fraction)
        federation = _federation(cell, dataset, partitions[dealt])
        tally = tally_run(federation, partitions[dealt].unseen)
        if "features" in federation.method.needs:
            rows = feature_rows(dataset, partitions[dealt])
            depth = federation.method.feature_depth(federation.method.params) or federation.method.backbone.depth
            key = (cell.dataset, depth, hashlib.sha256(rows.tobytes()).hexdigest())
            if key not in kept:
                images, steps = {"features": len(rows)}, {"features": math.ceil(len(rows) / CHUNK)}
                tally = replace(tally, images={**tally.images, **images}, steps={**tally.steps, **steps})
            if cell.backbone.weights != "hub":  # what the hub serves may change, so it is not kept on disk
                kept.add(key)
        tallies.append(tally)
    return tallies


def tally_run(federation: Federation, unseen: Sequence[int] = ()) -> Tally:
    """Follow a run round by round, without computing anything."""
    method, protocol, data = federation.method, federation.protocol, federation.data
    split: Split = "val" if protocol.val_fraction else "test"
    train = [data.size(client) for client in range(data.num_clients)]
    test = [data.size(client, split) for client in range(data.num_clients)]
    images: Counter[str] = Counter()
    steps: Counter[str] = Counter()

    def count(kind: str, clients: Sequence[int], held: Sequence[int], epochs: int = 1) -> None:
        sizes = [held[client] for client in clients]
        images[kind] += epochs * sum(sizes)
        steps[kind] += epochs * math.ceil(max(sizes) / protocol.batch_size)

    first = [min(size, protocol.batch_size) for size in train]
    stages = method.stages(protocol.epochs)
    waits = {took_part: finetune_epochs(federation, took_part) for took_part in (True, False)}
    adapting = {wait: _epochs(federation, [method.adaptation(wait)]) for wait in waits.values()}
    took_part: set[int] = set()
    visits, step = 0, (1, 1)
    for round_ in range(1, protocol.rounds + 1):
        cohort = federation.cohort(round_)
        for clients in federation.stacks(cohort):
            for stage in stages:
                count(f"{TRAIN}{stage.name}", clients, train, stage.epochs if stage.rates else 0)
            if _overrides(method, "end_visit"):
                count("end", clients, train)
            if _overrides(method, "diagnostics"):
                count("diagnose", clients, first)
            step = max(step, (len(clients), sum(first[client] for client in clients)), key=lambda found: found[1])
        visits += len(cohort)
        took_part |= set(cohort)
        if not protocol.evaluated(round_):
            continue
        kind = "sweep" if protocol.swept(round_) and _overrides(method, "predictions") else "evaluate"
        for clients in federation.stacks(federation.members):
            for wait, epochs in adapting.items():
                group = [client for client in clients if waits[client in took_part] == wait]
                if group:
                    count("adapt", group, train, epochs)
                    count(kind, group, test)
    newcomers = _epochs(federation, method.newcomer_stages(protocol.epochs), newcomers=True) if unseen else 0
    for clients in federation.stacks(unseen):
        count("newcomer", clients, train, newcomers)
        count("evaluate", clients, test)
    return Tally(+images, +steps, visits, step)


def feature_rows(dataset: Dataset, partition: Partition) -> np.ndarray:
    """Whose features a run computes: those it needs, or all where it needs most of them."""
    rows = np.unique(np.concatenate([*partition.train, *partition.test, *partition.val]))
    return np.arange(len(dataset.labels)) if len(rows) > len(dataset.labels) / 2 else rows


def _federation(cell: Cell, dataset: Dataset, partition: Partition) -> Federation:
    """The cell's own, but for weights and images."""
    cls = registry().get(cell.method)
    params: Any = build(cls.Params, cell.params, f"parameters of {cell.method}")
    backbone = _backbone(cell.backbone.name, cell.backbone.image_size)
    data = ClientData(dataset, partition, frozenset(), device=backbone.device)
    method = cls(params, backbone, Task(dataset.class_names, data.counts(dataset.num_classes)))
    members = [client for client in range(partition.num_clients) if client not in partition.unseen]
    return Federation(method, data, cell.protocol, cell.seed, members)


def _epochs(federation: Federation, stages: Sequence[Stage], newcomers: bool = False) -> int:
    """Passes over a client's data; a stage that trains nothing of what the client holds makes none."""
    if not any(stage.epochs for stage in stages):
        return 0
    _, theta = federation.theta(federation.start(), federation.members[:1], newcomers)
    return sum(stage.epochs for stage in stages if stage.rates.keys() & theta.keys())


def _overrides(method: Method, name: str) -> bool:
    return getattr(type(method), name) is not getattr(Method, name)


# -- time ------------------------------------------------------------------------------------------------------------


def makespan(seconds: Sequence[float], workers: int) -> float:
    """When the last of ``workers`` is done, each taking the next cell when it has finished one."""
    free = [0.0] * workers
    for cell in seconds:
        heapq.heapreplace(free, free[0] + cell)
    return max(free)


def _key(cell: Cell, data: Labelled) -> str:
    """Cells with equal keys have passes of equal cost; learning rates are no part of it."""
    params = {name: value for name, value in cell.params.items() if name != "lr" and not name.endswith("_lr")}
    return json.dumps([cell.method, params, data.dataset.num_classes, cell.protocol.batch_size], sort_keys=True)


def _joined(job: Job | None, cell: Cell, classes: int, tally: Tally) -> Job:
    """``job`` with another of its cells."""
    clients, images = tally.step
    if job is None:
        job = Job(cell.method, cell.params, cell.backbone, classes, cell.protocol.batch_size, {}, (1, 1))
    step = max(job.step, (clients, math.ceil(images / clients)), key=lambda found: found[0] * found[1])
    return replace(job, images=dict(Counter(job.images) + Counter(tally.images)), step=step)


def _overhead(data: Mapping[str, Labelled]) -> Overhead:
    """Measured on glyphs, where a suite uses them; cells of other data are so long that it does not matter."""
    embedded = next((name for name in data if name in EMBEDDED), None)
    return measure_overhead(embedded) if embedded else Overhead()


def _seconds(found: CellPlan, price: Price, overhead: Overhead) -> float:
    tally = found.tally
    passes = sum(tally.steps[kind] * price.lines[kind].step for kind in tally.steps)
    images = sum(tally.images[kind] * price.lines[kind].image for kind in tally.images)
    return passes + images + overhead.cell + overhead.round * found.cell.protocol.rounds
