"""A further executor is one class and its registration: it runs suites, and its cells are tried again."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fedprompt.core.errors import UserError
from fedprompt.harness.cli import build_parser
from fedprompt.harness.running import executors as registry_module
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.executors import ExecutorEntry, executors, get_executor, register_executor
from fedprompt.harness.running.executors.attempt import attempt
from fedprompt.harness.running.executors.interface import CellOutcome, Executor, LostCell, OnRound, Task
from fedprompt.harness.running.session import run_cells


class Backwards(Executor):
    """Runs the last cell first, and loses the first that it is asked for."""

    def __init__(self, environment: RunEnvironment, _workers: int) -> None:
        self.environment, self.tasks, self.lost = environment, list[Task](), False

    def submit(self, tasks: Sequence[Task]) -> None:
        self.tasks += tasks

    def wait(self, on_round: OnRound) -> Iterator[CellOutcome | LostCell]:
        cell, restart = self.tasks.pop()
        if not self.lost:
            self.lost = True
            yield LostCell(cell, "the machine was switched off")
        else:
            yield attempt(cell, self.environment, on_round, restart)


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(registry_module, "_ENTRIES", dict(executors()))
    register_executor(ExecutorEntry("backwards", Backwards, "the last cell first", options="nothing"))
    return "backwards"


def test_a_fourth_executor_runs_cells_and_its_losses_are_tried_again(
    backwards: str, toy_cell: Cell, tmp_path: Path
) -> None:
    (outcome,) = run_cells([toy_cell], RunEnvironment(tmp_path), executor=backwards)
    assert not outcome.error
    (elsewhere,) = run_cells([toy_cell], RunEnvironment(tmp_path / "local"))
    assert (outcome.folder / "records.csv").read_bytes() == (elsewhere.folder / "records.csv").read_bytes()


@pytest.mark.parametrize("command", ["bench", "tune"])
def test_the_command_line_offers_every_registered_executor_and_its_option(backwards: str, command: str) -> None:
    args = build_parser().parse_args([command, "smoke", "--executor", backwards, "--backwards", "key=value"])
    assert args.executor == backwards
    assert args.options_of_backwards == ["key=value"]


def test_a_name_is_registered_once(backwards: str) -> None:
    with pytest.raises(UserError, match="'backwards' is already registered"):
        register_executor(ExecutorEntry("backwards", Backwards, "again"))


def test_an_unknown_executor_is_one_line() -> None:
    with pytest.raises(UserError, match=r"unknown executor 'slrum'. Did you mean 'slurm'\?"):
        get_executor("slrum")
