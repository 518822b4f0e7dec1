"""Local workers: which device each has, and what happens to cells that end their process or take too long."""

import os
import signal
import threading
from multiprocessing import Pipe
from pathlib import Path
from typing import ClassVar

import pytest
from support.deadly_cells import plugin_file, silent, tiny_cell

from fedprompt.core.errors import UserError
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment, choose_device
from fedprompt.harness.running.execution import execute
from fedprompt.harness.running.executors._local import ThisProcess, WorkerProcesses, device_of, open_local
from fedprompt.harness.running.executors.interface import CellOutcome, LostCell, Task
from fedprompt.harness.running.folder import failure_note

PLUGIN = """
import os, time
from fedprompt.methods.fedvpt import FedVPT

class Sleeper(FedVPT):
    name, order = "sleeper", 900
    def aggregate(self, server, uploads, weights, clients):
        time.sleep(1000)

class Quits(FedVPT):
    name, order = "quits", 901
    def loss(self, theta, batch):
        raise {"0": SystemExit(0), "1": KeyboardInterrupt("mine"), "2": GeneratorExit()}[os.environ["TOY_EXIT"]]
"""


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    return plugin_file(PLUGIN, tmp_path)


@pytest.mark.parametrize(
    ("workers", "devices", "expected"),
    [
        (4, ["cuda:0", "cuda:1"], ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]),
        (3, ["cuda:0", "cuda:1"], ["cuda:0", "cuda:1", "cuda:0"]),
        (2, ["cuda:0", "cuda:1", "cuda:2"], ["cuda:0", "cuda:1"]),
        (3, ["cpu"], ["cpu"] * 3),
    ],
)
def test_workers_are_dealt_round_robin_to_devices(workers: int, devices: list[str], expected: list[str]) -> None:
    assert [device_of(slot, devices) for slot in range(workers)] == expected


def test_a_device_that_is_named_twice_or_not_there_is_refused() -> None:
    assert choose_device("cpu:0,cpu:1") == "cpu:0,cpu:1"
    with pytest.raises(UserError, match="names a device twice"):
        choose_device("cpu,cpu")
    with pytest.raises(UserError, match="device 'abacus:1' is not available here"):
        choose_device("cpu,abacus:1")


class FakeWorker:
    """Says at once how its cell ended; its first cell kills it."""

    started: ClassVar[list[str]] = []

    def __init__(self, environment: RunEnvironment) -> None:
        self.started.append(environment.device)
        self.pipe, self.theirs = Pipe()
        self.cell: Cell | None = None
        self.deadline = None

    def run(self, task: Task) -> None:
        self.cell = task.cell
        if len(self.started) == 1:
            self.theirs.close()
        else:
            self.theirs.send(CellOutcome(task.cell, Path()))

    def end(self) -> None:
        self.pipe.close()


def test_a_worker_that_replaces_another_has_its_device() -> None:
    executor = WorkerProcesses(RunEnvironment(device="cuda:0,cuda:1"), 2, FakeWorker)  # type: ignore[arg-type]
    cells = [tiny_cell("fedvpt", seed, rounds=1) for seed in (0, 1)]
    executor.submit([Task(cells[0])])
    (lost,) = executor.wait(silent)
    assert isinstance(lost, LostCell)
    executor.submit([Task(cell) for cell in cells])
    ended: list[object] = []
    while len(ended) < 2:
        ended += executor.wait(silent)
    assert FakeWorker.started == ["cuda:0", "cuda:0", "cuda:1"]


@pytest.mark.slow
def test_two_workers_on_two_devices_give_the_bytes_of_one(tmp_path: Path, shared_cache: Path) -> None:
    cells = [tiny_cell("fedvpt", seed, rounds=2) for seed in (0, 1)]
    two = list(execute(cells, RunEnvironment(tmp_path / "two", device="cpu:0,cpu:1"), silent, workers=2))
    one = list(execute(cells, RunEnvironment(tmp_path / "one"), silent))
    records = {o.cell.hash: (o.folder / "records.csv").read_bytes() for o in two}
    assert records == {o.cell.hash: (o.folder / "records.csv").read_bytes() for o in one}


def test_cells_stay_in_this_process_only_if_nothing_can_have_to_be_killed() -> None:
    assert isinstance(open_local(RunEnvironment(), 1), ThisProcess)
    for environment, workers in (
        (RunEnvironment(), 2),
        (RunEnvironment(plugins=("mine.py",)), 1),
        (RunEnvironment(cell_timeout=5), 1),
    ):
        assert isinstance(open_local(environment, workers), WorkerProcesses)


@pytest.mark.slow
def test_a_cell_that_takes_too_long_is_killed_and_fails_alone(plugin: str, tmp_path: Path, shared_cache: Path) -> None:
    list(execute([tiny_cell("fedvpt", 1, rounds=1)], RunEnvironment(tmp_path / "data"), silent))  # draws the data
    cells = [tiny_cell("sleeper", rounds=2), tiny_cell("fedvpt", rounds=2)]
    environment = RunEnvironment(tmp_path / "out", plugins=(plugin,), cell_timeout=8)
    outcomes = {o.cell.method: o for o in execute(cells, environment, silent)}
    assert outcomes["sleeper"].error == "took longer than --cell-timeout allows (8 s)"
    assert failure_note(outcomes["sleeper"].folder) == outcomes["sleeper"].error
    assert not outcomes["fedvpt"].error


def test_a_time_limit_must_be_positive() -> None:
    with pytest.raises(UserError, match="--cell-timeout 0 must be above 0 seconds"):
        RunEnvironment(cell_timeout=0)


EXITS = {"0": "SystemExit: 0", "1": "KeyboardInterrupt: mine", "2": "GeneratorExit"}


@pytest.mark.parametrize("kind", EXITS)
def test_a_method_that_exits_fails_alone_in_this_process(
    kind: str, plugin: str, tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_EXIT", kind)
    quits, healthy = execute(
        [tiny_cell("quits", rounds=1), tiny_cell("fedvpt", rounds=1)], RunEnvironment(tmp_path), silent
    )
    assert quits.error == EXITS[kind]
    assert not healthy.error


@pytest.mark.slow
def test_a_method_that_raises_keyboard_interrupt_in_a_worker_fails_alone(
    plugin: str, tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_EXIT", "1")
    (outcome,) = execute([tiny_cell("quits", rounds=1)], RunEnvironment(tmp_path / "out", plugins=(plugin,)), silent)
    assert outcome.error == "KeyboardInterrupt: mine"


def test_ctrl_c_ends_a_command_whose_cells_run_in_its_own_process(toy_cell: Cell, tmp_path: Path) -> None:
    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(KeyboardInterrupt):
        list(execute([toy_cell], RunEnvironment(tmp_path), lambda _: os.kill(os.getpid(), signal.SIGINT)))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
