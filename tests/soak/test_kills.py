"""A hundred kills at random moments: every run that gets through has the bytes of an undisturbed one."""

import dataclasses
import random
import time
from pathlib import Path

import pytest
from support.kills import run_under_kills, tables

from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.run import run_cell

VARIANTS = {
    "entries are appended": {"participation": 0.25},
    "all clients take part": {"participation": 1.0},
    "clients keep what they trained": {"participation": 0.5, "eval_point": "post_local"},
    "heads of their own": {"participation": 0.5, "head": "local"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_kills(variant: str, toy_cell: Cell, tmp_path: Path, moments: random.Random, figures: list[str]) -> None:
    protocol = dataclasses.replace(toy_cell.protocol, rounds=20, eval_every=4, **VARIANTS[variant])
    cell = dataclasses.replace(toy_cell, protocol=protocol)
    begun = time.perf_counter()
    undisturbed = tables(run_cell(cell, RunEnvironment(tmp_path / "a")))
    longest = 0.6 * (time.perf_counter() - begun)
    finished = run_under_kills(cell, RunEnvironment(tmp_path / "b"), 25, longest, moments)
    assert all(run == undisturbed for run in finished)
    figures.append(f"25 kills ({variant}): {len(finished)} resumed runs, all with equal bytes")
