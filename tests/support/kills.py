"""Runs that are killed at random moments, and what is left of them."""

import multiprocessing
import random
import shutil
from pathlib import Path

from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.folder import run_folder
from fedprompt.harness.running.run import run_cell

TABLES = ("records.csv", "rounds.csv", "scores.gz", "partition.npz")


def tables(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in TABLES}


def run_under_kills(
    cell: Cell, environment: RunEnvironment, kills: int, longest: float, moments: random.Random
) -> list[dict[str, bytes]]:
    """The tables of every run that got through, when processes are killed after at most ``longest`` seconds.

    A run that got through is deleted and begun again until there were enough kills; the last one follows the last kill.
    """
    folder, finished = run_folder(environment.out, cell), []
    context = multiprocessing.get_context("fork")  # a child that has everything imported dies inside the run
    while kills:
        child = context.Process(target=run_cell, args=(cell, environment))
        child.start()
        child.join(moments.uniform(0.0, longest))
        if child.is_alive():
            child.kill()
            child.join()
            kills -= 1
        elif child.exitcode:
            raise AssertionError(f"resuming after a kill ended with exit code {child.exitcode}")
        else:
            finished.append(tables(folder))
            shutil.rmtree(folder)
    return [*finished, tables(run_cell(cell, environment))]
