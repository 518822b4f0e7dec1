"""Cells that kill their process, and commands that are interrupted: neighbours finish, nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.deadly_cells import plugin_file, silent, tiny_cell
from support.run_folders import done_folder

from fedprompt.harness.cli._progress import _flops
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.execution import CellOutcome, execute
from fedprompt.harness.running.folder import is_done, run_folder

PLUGIN = """
import os
from pathlib import Path
from fedprompt.methods.fedvpt import FedVPT

class Deadly(FedVPT):
    name, order = "deadly", 900
    def loss(self, theta, batch):
        os._exit(3)

class DeadlyOnce(FedVPT):
    name, order = "deadly-once", 901
    def loss(self, theta, batch):
        marker = Path(__file__).with_suffix(".died")
        if not marker.exists():
            marker.touch()
            os._exit(3)
        return super().loss(theta, batch)

class Slow(FedVPT):
    name, order = "slow", 902
    def loss(self, theta, batch):
        import time
        time.sleep(0.2)
        return super().loss(theta, batch)

class Sleeper(FedVPT):
    name, order = "sleeper", 903
    def loss(self, theta, batch):
        import time
        time.sleep(1000)
"""


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    return plugin_file(PLUGIN, tmp_path)


def by_method(outcomes: list[CellOutcome]) -> dict[str, str]:
    return {f"{outcome.cell.method} {outcome.cell.seed}": outcome.error for outcome in outcomes}


@pytest.mark.slow
def test_a_cell_that_kills_its_worker_fails_alone(plugin: str, tmp_path: Path, shared_cache: Path) -> None:
    cells = [tiny_cell(name, rounds=2, eval_every=1000) for name in ("deadly", "deadly-once", "fedvpt")]
    environment = RunEnvironment(tmp_path / "out", plugins=(plugin,))
    done_folder(environment.out, cells[0])  # results of an earlier time, to be replaced
    outcomes = list(execute(cells, environment, silent, workers=2, restart={cells[0].hash}, retries=1))
    errors = by_method(outcomes)
    assert errors.pop("deadly 0").startswith("its process died 2 times")
    assert set(errors.values()) == {""}
    folder = run_folder(environment.out, cells[0])
    assert not is_done(folder)
    assert "its process died" in json.loads((folder / "failed.json").read_text())["reason"]


@pytest.mark.slow
def test_counting_the_cost_of_a_deadly_method_leaves_the_command_alive(
    plugin: str, tmp_path: Path, shared_cache: Path
) -> None:
    environment = RunEnvironment(tmp_path, plugins=(plugin,))
    healthy, deadly = ([tiny_cell(name, seed, rounds=2) for seed in (0, 1)] for name in ("fedvpt", "deadly"))
    assert _flops([*healthy, *deadly], environment) == {}
    assert set(_flops(healthy, environment)) == {cell.hash for cell in healthy}


@pytest.mark.slow
def test_counting_the_cost_of_a_sleeping_method_takes_no_longer_than_it_may(
    plugin: str, tmp_path: Path, shared_cache: Path
) -> None:
    cells = [tiny_cell("sleeper", seed, rounds=2) for seed in (0, 1)]
    begun = time.monotonic()
    assert _flops(cells, RunEnvironment(tmp_path, plugins=(plugin,)), seconds=1) == {}
    assert time.monotonic() - begun < 30  # the process itself has to start


def test_a_method_that_leaves_python_fails_alone(
    toy_cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedprompt.methods.fedvpt import FedVPT

    monkeypatch.setattr(FedVPT, "loss", lambda *_: sys.exit("no more"))
    (outcome,) = execute([toy_cell], RunEnvironment(tmp_path), silent)
    assert outcome.error == "SystemExit: no more"


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["local", "ray"])
def test_an_interrupted_parent_ends_at_once_with_all_its_workers(
    plugin: str, tmp_path: Path, shared_cache: Path, executor: str
) -> None:
    if executor == "ray":
        pytest.importorskip("ray", reason="the extra `ray` is not installed")
    suite, out = tmp_path / "long.toml", tmp_path / "out"
    suite.write_text(
        'methods = ["slow"]\nseeds = [0, 1]\nbackbone = "micro-vit"\n'
        "[protocol]\nrounds = 1000\nepochs = 1\nbatch_size = 8\neval_every = 1000\nlast = 1\n"
        '[[settings]]\ntable = "t"\ndataset = "glyph-domains"\npartition = "domains:m=1,shots=1"\n'
    )
    command = [sys.executable, "-m", "fedprompt.harness.cli", "bench", str(suite), "--plugin", plugin]
    command += ["--out", str(out), "--workers", "2", "--executor", executor]
    # Tests that were started in the background of a script ignore the signal, and so would whatever they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # A session of its own: the signal goes to the parent alone, and whatever is left of the group can be counted.
    # And a Ray of its own: a cluster of this machine may be that of another test.
    environment = {**os.environ, "RAY_ADDRESS": "local"}
    parent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment)
    try:
        wait_for(lambda: len(list(out.glob("runs/*/checkpoint.journal"))) == 2, 240)
        parent.send_signal(signal.SIGINT)
        begun = time.monotonic()
        _, errors = parent.communicate(timeout=60)
        assert time.monotonic() - begun < 20
        assert parent.returncode == 130
        assert errors.splitlines()[-1] == "fedprompt: interrupted; the same command continues from here"
        assert "Traceback" not in errors
        wait_for(lambda: not members(parent.pid), 10)
    finally:
        for pid in members(parent.pid):
            os.kill(pid, signal.SIGKILL)


def members(group: int) -> list[int]:
    """Processes of a group that still run."""
    alive = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        state, _, pgrp, *_ = rest.split()
        if int(pgrp) == group and state != "Z":
            alive.append(int(stat.parent.name))
    return alive


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)
