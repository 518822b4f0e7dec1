"""Cells on a real Slurm of one node: the bytes of one process, whatever is cancelled, drained or interrupted."""

import inspect
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.deadly_cells import plugin_file, silent, tiny_cell
from support.slurm import ask, missing, slurm, wait_until

from fedprompt.core.errors import UserError
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.execution import CellOutcome, execute
from fedprompt.harness.running.executors._slurm import COMMANDS, DAY, NUMBERS, TEXTS, job_parameters
from fedprompt.harness.running.folder import is_locked
from fedprompt.harness.running.run import RoundProgress

submitit_slurm = pytest.importorskip("submitit.slurm.slurm", reason="submitit is not installed (extra `slurm`)")
needs_slurm = pytest.mark.skipif(bool(missing()), reason=missing())

PLUGIN = """
import time
from fedprompt.methods.fedvpt import FedVPT

class Slow(FedVPT):
    name, order = "slow", 900
    def aggregate(self, server, uploads, weights, clients):
        time.sleep(0.6)
        return super().aggregate(server, uploads, weights, clients)
"""
TABLES = ("records.csv", "rounds.csv")


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, Path]]:
    """The node's name, and the file that Slurm's programs find the cluster by."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    try:
        with slurm(folder) as node:
            yield node, folder / "slurm.conf"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def node(cluster: tuple[str, Path], shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SLURM_CONF", str(cluster[1]))
    return cluster[0]


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    return plugin_file(PLUGIN, tmp_path)


def chosen(*settings: str, **environment: Any) -> dict[str, Any]:
    """Parameters of the jobs that `--slurm KEY=VALUE` asks for."""
    options = tuple((key, value) for key, _, value in (setting.partition("=") for setting in settings))
    return job_parameters(RunEnvironment(executor_options=options, **environment))


def test_settings_of_jobs_have_defaults() -> None:
    assert chosen() == {"time": DAY, "cpus_per_task": 1}
    assert chosen(threads=4, device="cuda") == {"time": DAY, "cpus_per_task": 4, "gpus_per_node": 1}
    assert chosen("gres=gpu:a100:1", device="cuda") == {"time": DAY, "cpus_per_task": 1, "gres": "gpu:a100:1"}


def test_settings_of_jobs_are_those_of_submitit() -> None:
    settings = chosen("partition=gpu", "time=90", "account=007", "setup=module load x", "setup=ulimit -c 0")
    assert settings["account"] == "007"
    assert settings["time"] == 90
    assert settings["setup"] == ["module load x", "ulimit -c 0"]
    accepted = inspect.signature(submitit_slurm._make_sbatch_string).parameters
    assert {*TEXTS, *NUMBERS, *COMMANDS, "srun_args"} <= accepted.keys()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("partitoin=gpu", r"unknown --slurm setting 'partitoin'. Did you mean 'partition'\?"),
        ("nodes=2", "unknown --slurm setting 'nodes'"),
        ("time=1:30:00", "--slurm time=1:30:00 must be a whole number of 1 or more minutes"),
    ],
)
def test_settings_that_are_not_known_or_not_numbers_are_one_line(setting: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        chosen(setting)


def test_a_machine_without_slurm_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no sbatch, srun, squeue, scancel on the path"):
        list(execute([tiny_cell("fedvpt", rounds=1)], RunEnvironment(tmp_path), silent, executor="slurm"))


@needs_slurm
def test_a_partition_that_is_not_there_is_one_line(node: str, tmp_path: Path) -> None:
    environment = RunEnvironment(tmp_path, executor_options=(("partition", "nowhere"),))
    with pytest.raises(UserError, match=r"Slurm did not accept the jobs \(.*[Ii]nvalid partition"):
        list(execute([tiny_cell("fedvpt", rounds=1)], environment, silent, executor="slurm"))


@needs_slurm
@pytest.mark.slow
def test_an_interrupted_command_cancels_its_jobs(node: str, plugin: str, tmp_path: Path) -> None:
    def interrupt(_: RoundProgress) -> None:
        raise KeyboardInterrupt

    cells = [tiny_cell("slow", seed, rounds=1000) for seed in (0, 1, 2)]  # of which two run and one waits
    with pytest.raises(KeyboardInterrupt):
        list(execute(cells, RunEnvironment(tmp_path, plugins=(plugin,)), interrupt, executor="slurm"))
    wait_until(lambda: not ask("squeue", "--noheader"), 10)
    assert not any(is_locked(folder) for folder in tmp_path.glob("runs/*"))


def same_tables(outcomes: list[CellOutcome], elsewhere: Path) -> bool:
    return all(
        (outcome.folder / name).read_bytes() == (elsewhere / "runs" / outcome.cell.hash / name).read_bytes()
        for outcome in outcomes
        for name in TABLES
    )


@needs_slurm
@pytest.mark.slow
def test_cancelled_jobs_and_a_drained_node_leave_the_bytes_of_one_process(
    node: str, plugin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [tiny_cell("slow", seed, rounds=6) for seed in (0, 1, 2)]  # of which two run and one waits
    rounds: list[RoundProgress] = []
    cancelled: list[str] = []
    waiting: list[str] = []

    def resume() -> None:
        waiting.extend(ask("squeue", "--noheader", "--array", "--states=PENDING", "--format=%i").split())
        ask("scontrol", "update", f"nodename={node}", "state=resume")

    later = threading.Timer(5, resume)

    def interfere(progress: RoundProgress) -> None:
        """When the first round arrives, drain the node and cancel a job that runs."""
        rounds.append(progress)
        if len(rounds) == 1:
            ask("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
            cancelled.append(ask("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i").split()[0])
            ask("scancel", "--signal=KILL", "--full", cancelled[0])
            later.start()

    monkeypatch.chdir(tmp_path)
    environment = RunEnvironment(Path("results"), plugins=(plugin,))  # relative to a folder that jobs do not start in
    outcomes = list(execute(cells, environment, interfere, executor="slurm"))
    later.join()
    assert [outcome.error for outcome in outcomes] == [""] * 3
    assert cancelled
    assert waiting, "no job waited for the drained node"
    seen = {(progress.cell, progress.round) for progress in rounds}  # a job may be killed before it tells a saved round
    assert {(cell.hash, 6) for cell in cells} <= seen <= {(cell.hash, r) for cell in cells for r in range(1, 7)}
    list(execute(cells, RunEnvironment(tmp_path / "one", plugins=(plugin,)), silent, workers=2))
    assert same_tables(outcomes, tmp_path / "one")
