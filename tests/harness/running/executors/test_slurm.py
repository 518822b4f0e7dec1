"""Cells on a real Slurm of one node: the bytes of one process, whatever is cancelled, drained or interrupted."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.deadly_cells import plugin_file, silent, tiny_cell
from support.slurm import ask, missing, slurm

from fedprompt.harness.running.execution import CellOutcome, execute
from fedprompt.harness.running.run import RoundProgress
from fedprompt.harness.running.site import Site

pytest.importorskip("submitit", reason="submitit is not installed (extra `slurm`)")
needs_slurm = pytest.mark.skipif(bool(missing()), reason=missing())

PLUGIN = """
import time
from fedprompt.methods.fedvpt import FedVPT

class Slow(FedVPT):
    name, order = "slow", 900
    def aggregate(self, server, uploads, weights, clients):
        time.sleep(0.7)
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
    cells = [tiny_cell("slow", seed, rounds=4) for seed in (0, 1, 2)]
    cancelled: list[str] = []
    drained: list[str] = []
    rounds: list[RoundProgress] = []

    def interfere(progress: RoundProgress) -> None:
        """Cancel the first job that has done a round; drain the node when the second cell begins."""
        rounds.append(progress)
        if not cancelled:
            running = ask("squeue", "--noheader", "--array", "--states=RUNNING", "--format=%i").split()
            cancelled.append(running[0])
            ask("scancel", "--signal=KILL", "--full", running[0])
        elif not drained:
            ask("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
            drained.append(ask("sinfo", "--noheader", "--format=%T").strip())
            assert drained[0].startswith("drain")
            ask("scontrol", "update", f"nodename={node}", "state=resume")

    monkeypatch.chdir(tmp_path)
    environment = Site(Path("results"), plugins=(plugin,))  # relative to a folder that jobs do not start in
    outcomes = list(execute(cells, environment, interfere, executor="slurm"))
    assert [outcome.error for outcome in outcomes] == [""] * 3
    assert cancelled
    assert drained
    assert {(p.cell, p.round) for p in rounds} == {(cell.hash, r) for cell in cells for r in (1, 2, 3, 4)}
    list(execute(cells, Site(tmp_path / "one", plugins=(plugin,)), silent))
    assert same_tables(outcomes, tmp_path / "one")
