"""A disk that fills up while a cell writes: one line, and the run goes on once there is room."""

import dataclasses
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.kills import tables

from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.execution import execute
from fedprompt.harness.running.folder import is_done
from fedprompt.harness.running.run import run_cell


def mount(folder: Path, options: str) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if not mount(folder, "size=16k"):
        pytest.skip("mounting a small disk is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk(
    toy_cell: Cell, small_disk: Path, tmp_path: Path, moments: random.Random, figures: list[str]
) -> None:
    protocol = dataclasses.replace(toy_cell.protocol, rounds=12, eval_every=1, head="local")
    cell = dataclasses.replace(toy_cell, protocol=protocol)
    undisturbed, environment, filled = (
        tables(run_cell(cell, RunEnvironment(tmp_path / "a"))),
        RunEnvironment(small_disk),
        0,
    )
    size = 16
    while True:
        [outcome] = execute([cell], environment, lambda _: None)
        if is_done(outcome.folder):
            break
        assert "No space left" in outcome.error
        assert "\n" not in outcome.error
        filled, size = filled + 1, size + moments.choice([4, 8])
        assert mount(small_disk, f"remount,size={size}k")
    assert filled > 3
    assert tables(outcome.folder) == undisturbed
    figures.append(f"disk full {filled} times between 16 and {size} kB: the run ended with equal bytes")
