"""Cells on a real Ray cluster of two nodes: the bits of one process, whoever is killed and whatever disk they share."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.deadly_cells import plugin_file, silent, tiny_cell

from fedprompt.core.errors import UserError
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.execution import CellOutcome, execute
from fedprompt.harness.running.executors import _ray as on_ray
from fedprompt.harness.running.run import RoundProgress

ray = pytest.importorskip("ray", reason="Ray is not installed (extra `ray`)")

PLUGIN = """
import os, time
from pathlib import Path
from fedprompt.methods.fedvpt import FedVPT

class Slow(FedVPT):
    name, order = "slow", 900
    def aggregate(self, server, uploads, weights, clients):
        time.sleep(0.7)
        return super().aggregate(server, uploads, weights, clients)

class DeadlyOnce(Slow):
    name, order = "deadly-once", 901
    def aggregate(self, server, uploads, weights, clients):
        marker = Path(__file__).with_suffix(".died")
        if not marker.exists():
            marker.touch()
            os._exit(3)
        return super().aggregate(server, uploads, weights, clients)

class Sleeper(FedVPT):
    name, order = "sleeper", 902
    def aggregate(self, server, uploads, weights, clients):
        time.sleep(1000)
"""
TABLES = ("records.csv", "rounds.csv")


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    return plugin_file(PLUGIN, tmp_path)


@pytest.fixture
def start_cluster(shared_cache: Path) -> Iterator[Callable[[int], Any]]:
    from ray.cluster_utils import Cluster

    clusters = []

    def start(head_cpus: int) -> Any:
        clusters.append(Cluster(True, head_node_args={"num_cpus": head_cpus, "include_dashboard": False}))
        ray.init(address=clusters[-1].address, log_to_driver=False)
        return clusters[-1]

    yield start
    ray.shutdown()
    for cluster in clusters:
        cluster.shutdown()


def same_tables(outcomes: list[CellOutcome], elsewhere: Path) -> bool:
    folders = {outcome.cell.hash: outcome.folder for outcome in outcomes}
    return all(
        (folder / name).read_bytes() == (elsewhere / "runs" / key / name).read_bytes()
        for key, folder in folders.items()
        for name in TABLES
    )


@pytest.mark.slow
def test_two_nodes_of_which_a_worker_and_one_node_are_killed(
    plugin: str, tmp_path: Path, start_cluster: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [tiny_cell("deadly-once", rounds=4), *(tiny_cell("slow", seed, rounds=4) for seed in (0, 1))]
    cluster = start_cluster(1)
    nodes = [cluster.add_node(num_cpus=1)]
    rounds: list[RoundProgress] = []

    def lose_a_node(progress: RoundProgress) -> None:
        rounds.append(progress)
        if nodes and len({seen.cell for seen in rounds}) == 2:  # both nodes are at work
            cluster.remove_node(nodes.pop(), allow_graceful=False)

    monkeypatch.chdir(tmp_path)
    environment = RunEnvironment(
        Path("results"), plugins=(plugin,)
    )  # relative to a folder that workers do not start in
    outcomes = list(execute(cells, environment, lose_a_node, executor="ray"))
    assert [outcome.error for outcome in outcomes] == [""] * 3
    assert not nodes
    assert (tmp_path / "deadly.died").exists()
    assert {outcome.folder.parent for outcome in outcomes} == {tmp_path / "results" / "runs"}
    assert not list((tmp_path / "results").glob(".ray-*"))
    list(execute(cells, RunEnvironment(tmp_path / "one", plugins=(plugin,)), silent))
    assert same_tables(outcomes, tmp_path / "one")


@pytest.mark.slow
def test_a_cell_that_takes_too_long_is_killed_on_its_node(
    plugin: str, tmp_path: Path, start_cluster: Callable[[int], Any]
) -> None:
    start_cluster(2)
    environment = RunEnvironment(tmp_path / "out", plugins=(plugin,), cell_timeout=5)
    (outcome,) = execute([tiny_cell("sleeper", rounds=4)], environment, silent, executor="ray")
    assert outcome.error == "took longer than --cell-timeout allows (5 s)"


def can_mount() -> bool:
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return bool(shutil.which("unshare")) and subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_a_node_that_shares_no_disk_sends_the_run_folder_back(
    tmp_path: Path, start_cluster: Callable[[int], Any]
) -> None:
    if not can_mount():
        pytest.skip("a node with a disk of its own needs the right to mount")
    cells, out = [tiny_cell("fedvpt", seed, rounds=4) for seed in (0, 1)], tmp_path / "results"
    out.mkdir()
    address = start_cluster(0).address
    start = f"{sys.executable} -m ray.scripts.scripts start --address={address} --num-cpus=2 --block"
    script = f"mount -t tmpfs tmpfs {out} && exec {start}"
    node = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.DEVNULL)
    try:
        for _ in range(300):
            if ray.cluster_resources().get("CPU"):
                break
            assert node.poll() is None
            time.sleep(0.2)
        outcomes = list(execute(cells, RunEnvironment(out), silent, executor="ray"))
    finally:
        node.terminate()
        node.wait(60)
    assert [outcome.error for outcome in outcomes] == ["", ""]
    list(execute(cells, RunEnvironment(tmp_path / "one"), silent))
    assert same_tables(outcomes, tmp_path / "one")
    files = [{path.name for path in (place / "runs" / cells[0].hash).iterdir()} for place in (out, tmp_path / "one")]
    assert files[0] == files[1]


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match=r"no Ray cluster answers at RAY_ADDRESS=127.0.0.1:1 .*`ray start --head`"):
        list(execute([tiny_cell("fedvpt", rounds=4)], RunEnvironment(tmp_path), silent, executor="ray"))


def test_a_cluster_that_dies_is_one_line() -> None:
    with pytest.raises(UserError, match=r"stopped answering \(GetTimeoutError\).*same command"), on_ray._answering(ray):
        raise ray.exceptions.GetTimeoutError


def test_a_cluster_without_what_a_cell_needs_is_refused() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": True, "Resources": {"CPU": 1.0, "GPU": 1.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    on_ray._require_a_node(nodes, {"num_cpus": 1, "num_gpus": 0.25})
    with pytest.raises(UserError, match=r"needs 2 CPUs and 0.25 GPUs, but the largest nodes .* have 4 and 1"):
        on_ray._require_a_node(nodes, {"num_cpus": 2, "num_gpus": 0.25})


@pytest.mark.parametrize("gpus", [0.0, -1.0, 1.5])
def test_a_cell_takes_one_gpu_or_a_part_of_it(gpus: float) -> None:
    with pytest.raises(UserError, match="above 0 and at most 1"):
        RunEnvironment(gpus_per_cell=gpus)


def test_the_device_of_a_cluster_is_not_that_of_this_machine(tmp_path: Path) -> None:
    assert on_ray._on_nodes(RunEnvironment(tmp_path, device="auto"), {"CPU": 1.0, "GPU": 8.0}).device == "cuda"
    assert on_ray._on_nodes(RunEnvironment(tmp_path, device="auto"), {"CPU": 1.0}).device == "cpu"
    with pytest.raises(UserError, match="cuda:1"):
        on_ray._on_nodes(RunEnvironment(tmp_path, device="cuda:1"), {"GPU": 8.0})
