"""What more clients cost: `python benchmarks/growth.py [--clients 100 1000] [--rounds 1000]`.

Every client has two classes of freshly drawn glyphs, two to four images to train and two or three to test, and keeps
its own head; five clients take part in each round. Each size is measured in a process of its own, in CPU seconds,
because its peak memory is wanted. With `--rounds` each size then runs a whole cell of so many rounds,
evaluated ten times.
"""

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.datasets import Dataset
from fedprompt.datasets._glyph_classes import HUNDRED
from fedprompt.datasets.glyphs import GlyphSet, render
from fedprompt.harness.measuring.evaluation import evaluate
from fedprompt.harness.running import cell as cell_module
from fedprompt.harness.running import run as run_module
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.journal import CHECKPOINT, RECORDS, Journal
from fedprompt.harness.running.run import assemble, run_cell

COHORT, CLASSES_EACH, MEASURED = 5, 2, 40
MICRO = BackboneSpec("micro-vit", "micro-vit.safetensors", 32)


def crowd_dataset(clients: int) -> Dataset:
    """Glyphs of a hundred classes, as many as give each of ``clients`` some of two classes."""
    slots = CLASSES_EACH * clients // len(HUNDRED)
    drawn = GlyphSet("crowd", HUNDRED, ("colour",), train=2 * slots, test=-(-3 * slots // 2))
    return Dataset("crowd", class_names=tuple(HUNDRED), domain_names=drawn.styles, checksum="crowd", **render(drawn))


def crowd_cell(clients: int, method: str, rounds: int, dataset: Dataset) -> Cell:
    """A cell of ``dataset``, which this process finds by name from now on."""
    run_module._dataset = lambda *_: dataset  # type: ignore[assignment]
    cell_module.dataset_names = lambda: ["crowd"]  # type: ignore[attr-defined]
    protocol = {
        "rounds": rounds,
        "participation": COHORT / clients,
        "epochs": 1,
        "batch_size": 16,
        "head": "local",
        "last": 1,
        "eval_every": max(1, rounds // 10),
    }
    return make_cell(method, "crowd", f"classes:s={CLASSES_EACH},clients={clients}", MICRO, 0, {}, protocol)


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.process_time()
    result = action()
    return time.process_time() - begun, result


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(clients: int, method: str, rounds: int) -> dict[str, float]:
    """CPU seconds of each part, and bytes."""
    dataset = crowd_dataset(clients)
    cell = crowd_cell(clients, method, MEASURED, dataset)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = RunEnvironment(folder)
        assembling, (_, partition, federation) = timed(lambda: assemble(cell, environment))
        identity = (folder, cell, partition.hash, dataset.checksum)
        journal, state = Journal(*identity), federation.start()
        steps, checkpoints = [], []
        for _ in range(MEASURED):
            seconds, log = timed(lambda: federation.step(state))
            steps.append(seconds)
            checkpoints.append(timed(partial(journal.append, state, log, ()))[0])
        evaluating, records = timed(lambda: evaluate(federation, state))
        everyone = {client: federation.personal(state, client) for client in federation.members}
        state.personal = everyone | state.personal
        whole, _ = timed(lambda: journal.append(state, dataclasses.replace(log, cohort=federation.members), records))
        loading, again = timed(lambda: Journal(*identity))
        assert len(again.state.personal) == clients
        del again, everyone
        costs = {
            "assembling the cell": assembling,
            "round": median(steps),
            "its checkpoint": median(checkpoints),
            "evaluation of every client": evaluating,
            "checkpoint of every client": whole,
            "loading every client": loading,
            "peak memory": peak(),
        }
        return costs | (whole_run(cell, rounds, folder / "whole") if rounds else {})


def whole_run(cell: Cell, rounds: int, out: Path) -> dict[str, float]:
    rules = dataclasses.replace(cell.protocol, rounds=rounds, eval_every=max(1, rounds // 10))
    seconds, folder = timed(lambda: run_cell(dataclasses.replace(cell, protocol=rules), RunEnvironment(out)))
    sizes = {name: (folder / name).stat().st_size for name in (RECORDS, CHECKPOINT)}
    return {
        f"{rounds} rounds": seconds,
        "their records": sizes[RECORDS],
        "their checkpoint": sizes[CHECKPOINT],
        "their peak memory": peak(),
    }


def shown(name: str, value: float) -> str:
    if any(word in name for word in ("memory", "records", "checkpoint")) and value > 1e4:
        return f"{value / 1e6:,.0f} MB"
    return f"{value * 1000:.1f} ms" if value < 0.1 else f"{value:,.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--method", default="fedvpt")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="measure in this process")
    args = parser.parse_args()
    if args.json:
        print(json.dumps(measure(args.clients[0], args.method, args.rounds)))
        return
    columns = []
    for clients in args.clients:
        options = ["--clients", str(clients), "--method", args.method, "--rounds", str(args.rounds), "--json"]
        done = subprocess.run([sys.executable, __file__, *options], check=True, stdout=subprocess.PIPE)
        columns.append(json.loads(done.stdout.splitlines()[-1]))
    table = Table(f"{args.method}, {COHORT} clients per round", *(f"{clients:,} clients" for clients in args.clients))
    for name in columns[0]:
        table.add_row(name, *(shown(name, column[name]) for column in columns))
    Console().print(table)


if __name__ == "__main__":
    main()
