"""Databases of several machines: Optuna on PostgreSQL, and MLflow behind a server that keeps its runs there."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from support.postgres import free_port, postgres_server
from support.run_folders import a_cell, done_folder
from support.tuning_bench import a_suite, only_search, recorded_trials

from fedprompt.harness.recording.store import find_runs
from fedprompt.harness.recording.tracker import sync
from fedprompt.harness.results import read_records

TESTS = Path(__file__).parents[1]
TUNE = """
import sys, pathlib, support.tuning_bench as bench
bench.tune_beside_others(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), 0.2, sys.argv[3])
"""


@pytest.mark.slow
def test_four_processes_on_one_study_try_every_value_once(tmp_path: Path) -> None:
    log, rates = tmp_path / "log", (0.03, 0.1, 0.3)
    log.touch()
    with postgres_server() as url:
        command = [sys.executable, "-c", TUNE, str(tmp_path), str(log), url]
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        processes = [subprocess.Popen(command, env=environment) for _ in range(4)]
        assert [process.wait(timeout=600) for process in processes] == [0] * 4
        search = only_search(a_suite())
        assert sorted(recorded_trials(search, url)) == [(rate, "COMPLETE") for rate in rates]
    runs = Counter(log.read_text().split())
    assert runs == {cell.hash: 1 for rate in rates for cell in search.cells({"lr": rate})}


@contextmanager
def mlflow_server(database: str, folder: Path) -> Iterator[str]:
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    places = ["--backend-store-uri", database, "--artifacts-destination", str(folder / "artifacts")]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen([*command, *places], stdout=log, stderr=log, cwd=folder, start_new_session=True)
    try:
        for _ in range(600):
            try:
                urlopen(f"http://127.0.0.1:{port}/health").close()
                break
            except URLError:
                assert server.poll() is None, (folder / "server.log").read_text()
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 15)
        server.wait(60)


@pytest.mark.slow
def test_runs_recorded_by_two_processes_through_a_server_are_there_once(tmp_path: Path) -> None:
    out, cells = tmp_path / "results", [a_cell(seed=seed) for seed in range(4)]
    for cell in cells:
        done_folder(out, cell)
    with postgres_server() as database, mlflow_server(database, tmp_path) as uri:
        command = [sys.executable, "-m", "fedprompt.harness.cli", "sync", "--out", str(out), "--tracking-uri", uri]
        other = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        recorded, present, failed = sync(out, uri)
        assert other.wait(120) == 0
        assert (recorded + present, failed) == (4, 0)
        runs = find_runs(uri, cells)
        assert sorted(runs.current) == sorted(cell.hash for cell in cells)
        assert {run.info.status for run in runs.current.values()} == {"FINISHED"}
        assert read_records(uri).equals(read_records(out))  # the files went to the server and back
        assert sync(out, uri) == (0, 4, 0)
