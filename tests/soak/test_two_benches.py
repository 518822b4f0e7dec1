"""Two benches on one folder, killed and started again: every cell is run and recorded once."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from fedprompt.harness.recording.store import connect
from fedprompt.harness.recording.tracker import default_uri
from fedprompt.harness.running.suite_file import load_suite

SUITE = """
methods = ["fedvpt", "head-tune"]
seeds = [0, 1, 2]
backbone = "micro-vit"
weights = "random"
protocol = { rounds = 6, epochs = 1, last = 2, eval_every = 2 }
settings = [{ table = "T", dataset = "glyph-domains", partition = "domains:m=2,shots=2,test_shots=2" }]
"""


def start(suite: Path, out: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "fedprompt.harness.cli", "bench", str(suite), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = ["--workers", "2", "--device", "cpu", "--untuned"]
    return subprocess.Popen([*command, *options], env=environment, stdout=subprocess.DEVNULL, start_new_session=True)


def test_two_benches(tmp_path: Path, shared_cache: Path, moments: random.Random, figures: list[str]) -> None:
    suite, out = tmp_path / "mine.toml", tmp_path / "both"
    suite.write_text(SUITE)
    cells = load_suite(str(suite)).cells()
    assert start(suite, tmp_path / "one").wait(300) == 0
    kills = 0
    for _ in range(3):
        benches = [start(suite, out), start(suite, out)]
        try:
            benches[0].wait(moments.uniform(8, 25))
        except subprocess.TimeoutExpired:
            os.killpg(benches[0].pid, signal.SIGKILL)
            kills += 1
        assert benches[1].wait(300) in (0, 1)  # 1 where the other one was still running a cell
        benches[0].wait(300)
    assert start(suite, out).wait(300) == 0
    for cell in cells:
        for name in ("records.csv", "rounds.csv"):
            pair = [(place / "runs" / cell.hash / name).read_bytes() for place in (out, tmp_path / "one")]
            assert pair[0] == pair[1]
    store = connect(default_uri(out))
    experiment = store.get_experiment_by_name("fedprompt/glyph-domains")
    assert experiment is not None
    runs = store.search_runs([experiment.experiment_id])
    assert sorted(run.data.tags["cell_hash"] for run in runs) == sorted(cell.hash for cell in cells)
    assert {run.info.status for run in runs} == {"FINISHED"}
    figures.append(f"two benches on one folder, {kills} killed: {len(cells)} cells, each finished and recorded once")
