"""What a suite costs before anyone runs it: images seen, FLOPs, memory, bytes sent and time of every cell.

Images are counted along the schedule of the run, on the real partition, with the real selection of every round. FLOPs
are what `cost` counts for an image of each kind of pass, times these images.
"""

import heapq
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch

from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.planning.calibration import (
    Job,
    Overhead,
    Price,
    count_passes,
    measure_overhead,
    prices,
    structure,
)
from fedprompt.harness.planning.cost import BEGIN, Classes, Cost
from fedprompt.harness.planning.data import Labelled, labelled
from fedprompt.harness.planning.tally import Tally, classes_of, tally_cells
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.folder import is_done, run_folder
from fedprompt.harness.running.suite import Suite

BUSY = 0.5  # processes per core that make a machine busy
EMBEDDED = ("glyph-domains", "glyph-100")


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
        return sum(count for kind, count in self.tally.images.items() if kind != BEGIN)

    @property
    def flops(self) -> int:
        cost, texts = self.cost, self.cost.client_flops
        of_images = sum(count * (cost.flops[k] - texts.get(k, 0)) for k, count in self.tally.images.items())
        return of_images // cost.images + sum(
            self.tally.clients[k] * flops for k, flops in texts.items() if k in self.tally.clients
        )

    @property
    def activation_bytes(self) -> int:
        """What autograd keeps in the largest training step."""
        clients, images = self.tally.step
        of_images = self.cost.saved_bytes - self.cost.client_bytes
        return of_images * images // self.cost.images + clients * self.cost.client_bytes

    @property
    def bytes_sent(self) -> int:
        """Of all clients in all rounds, both ways."""
        saved = self.tally.visitors * (self.cost.bytes_down - self.cost.first_bytes_down)
        return self.tally.visits * (self.cost.bytes_down + self.cost.bytes_up) - saved


@dataclass(frozen=True)
class Plan:
    """The cells of a suite, each once, and how long those that are left take together."""

    cells: Mapping[str, CellPlan]  # by hash
    lines: Mapping[tuple[str, ...], Sequence[str]]  # hashes of all seeds, by (table, setting, row, title)
    seconds: float
    notes: tuple[str, ...] = ()

    def frame(self) -> pd.DataFrame:
        """One line per setting and row of a table, seeds together; a cell counts where it is shown first."""
        counted: set[str] = set()
        lines = []
        for (table, setting, row, title), hashes in self.lines.items():
            shown = [self.cells[name] for name in hashes]
            new = [self.cells[name] for name in hashes if name not in counted]
            counted.update(hashes)
            lines.append(
                {
                    "table": table,
                    "setting": setting,
                    "row": row,
                    "title": title,
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


def plan_suite(suite: Suite, environment: RunEnvironment, workers: int = 1, flops: float | None = None) -> Plan:
    """Count all cells of ``suite``; time follows from ``flops`` per second and worker, or is measured here."""
    torch.set_num_threads(environment.threads)  # small tensors: more threads would only wait for each other
    by_hash: dict[str, Cell] = {}
    lines: dict[tuple[str, ...], list[str]] = {}
    for setting, row, _, cell in suite.planned():
        name = cell.hash
        by_hash[name] = cell
        line = lines.setdefault((setting.table, setting.label, row.key, row.title), [])
        if name not in line:  # read under two policies, trained once
            line.append(name)
    cells = list(by_hash.values())
    data = {name: labelled(name, environment.data_root) for name in dict.fromkeys(cell.dataset for cell in cells)}
    tallies = tally_cells(cells, {name: known.dataset for name, known in data.items()}, environment.token_memory)
    classes = [classes_of(cell, data[cell.dataset].dataset) for cell in cells]
    keys = [_key(*counted) for counted in zip(cells, classes, tallies, strict=True)]
    jobs: dict[str, Job] = {}
    for key, cell, count, tally in zip(keys, cells, classes, tallies, strict=True):
        jobs[key] = _joined(jobs.get(key), cell, count, tally)
    done = [is_done(run_folder(environment.out, cell)) for cell in cells]
    timed = flops is None and not all(done)
    busy = _busy(os.getloadavg()[0], os.cpu_count() or 1) if timed else ()
    job_prices, started = prices(list(jobs.values()), environment, workers, timed)
    price_of = dict(zip(jobs, job_prices, strict=True))
    overhead = _overhead(data) if timed else Overhead()
    cell_plans = {}
    for name, key, tally, finished in zip(by_hash, keys, tallies, done, strict=True):
        untimed = CellPlan(by_hash[name], tally, price_of[key].cost, finished)
        seconds = 0.0 if finished else untimed.flops / flops if flops else _seconds(untimed, price_of[key], overhead)
        cell_plans[name] = replace(untimed, seconds=seconds)
    left = [cell_plan.seconds for cell_plan in cell_plans.values() if not cell_plan.finished]
    together = makespan(left, workers) + (started + overhead.start if timed else 0.0)
    notes = tuple(known.note for known in data.values() if known.note) + busy
    return Plan(cell_plans, lines, together, notes)


def _busy(load: float, cores: int) -> tuple[str, ...]:
    """A note if other programs were running before the machine was timed."""
    if load < BUSY * cores:
        return ()
    return (
        f"This machine was busy before it was timed (load {load:.1f} on {cores} cores), so the times are too long for "
        "an idle one; plan again when it is idle",
    )


def count_flops(cells: Sequence[Cell], environment: RunEnvironment) -> dict[str, int]:
    """FLOPs of every cell, by hash, counted without timing anything."""
    data = {
        name: labelled(name, environment.data_root).dataset for name in dict.fromkeys(cell.dataset for cell in cells)
    }
    costs: dict[str, Cost] = {}
    flops = {}
    for cell, tally in zip(cells, tally_cells(cells, data), strict=True):
        classes = classes_of(cell, data[cell.dataset])
        job = _joined(None, cell, classes, tally)
        key = json.dumps([_key(cell, classes, tally), sorted(tally.images)])
        costs[key] = costs.get(key) or count_passes(job)
        flops[cell.hash] = CellPlan(cell, tally, costs[key]).flops
    return flops


def makespan(seconds: Sequence[float], workers: int) -> float:
    """When the last of ``workers`` is done, each taking the next cell when it has finished one."""
    free = [0.0] * workers
    for cell in seconds:
        heapq.heapreplace(free, free[0] + cell)
    return max(free)


def _key(cell: Cell, classes: Classes, tally: Tally) -> str:
    """Cells with equal keys have passes of equal cost; learning rates are no part of it."""
    rules = cell.protocol
    return json.dumps(
        [cell.method, structure(cell.params), classes, rules.batch_size, tally.num_clients, _recipe(rules)]
    )


def _recipe(rules: Protocol) -> dict[str, Any]:
    """The fields of the protocol by which a step costs more or less."""
    return {"optimiser": rules.optimiser, "clip": rules.clip, "head_input": rules.head_input}


def _joined(job: Job | None, cell: Cell, classes: Classes, tally: Tally) -> Job:
    """``job`` with another of its cells."""
    clients, images = tally.step
    if job is None:
        batch, recipe = cell.protocol.batch_size, _recipe(cell.protocol)
        job = Job(cell.method, cell.params, cell.backbone, classes, batch, {}, (1, 1), tally.num_clients, recipe)
    step = max(job.step, (clients, math.ceil(images / clients)), key=lambda step: step[0] * step[1])
    return replace(job, images=dict(Counter(job.images) + Counter(tally.images)), step=step)


def _overhead(data: Mapping[str, Labelled]) -> Overhead:
    """Measured on glyphs, where a suite uses them; cells of other data are so long that it does not matter."""
    embedded = next((name for name in data if name in EMBEDDED), None)
    return measure_overhead(embedded) if embedded else Overhead()


def _seconds(planned: CellPlan, price: Price, overhead: Overhead) -> float:
    tally = planned.tally
    passes = sum(tally.steps[kind] * price.lines[kind].step for kind in tally.steps)
    images = sum(tally.images[kind] * price.lines[kind].image for kind in tally.images)
    return passes + images + overhead.cell + overhead.round * planned.cell.protocol.rounds
