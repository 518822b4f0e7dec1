"""Run folders: whole files, refused foreign ones, and results that do not depend on being killed."""

import dataclasses
import json
import multiprocessing
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.kills import TABLES, run_under_kills, tables

from fedprompt.core.errors import UserError
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.folder import open_folder, run_folder
from fedprompt.harness.running.journal import CHECKPOINT
from fedprompt.harness.running.run import RoundProgress, run_cell


class StopError(Exception):
    pass


def stop_after(round_: int) -> Callable[[RoundProgress], None]:
    def report(progress: RoundProgress) -> None:
        if progress.round == round_:
            raise StopError

    return report


def test_a_finished_run_has_its_files(toy_cell: Cell, tmp_path: Path) -> None:
    folder = run_cell(toy_cell, RunEnvironment(tmp_path))
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names == {"cell.json", "checkpoint.journal", "summary.json", "done", *TABLES}
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["rounds_counted"] == 2
    assert summary["floats_up"] == 2 * 96  # two prompt tokens of micro-vit's width


def test_records_name_seed_and_partition(toy_cell: Cell, tmp_path: Path) -> None:
    folder = run_cell(toy_cell, RunEnvironment(tmp_path))
    header, first, *_ = (folder / "records.csv").read_text().splitlines()
    assert header == "seed,round,client,domain,correct,total,participated,unseen,samples,policy,test_set,partition"
    assert first.split(",")[-1] == json.loads((folder / "summary.json").read_text())["partition_hash"][:16]


def test_a_finished_cell_is_skipped(toy_cell: Cell, tmp_path: Path) -> None:
    folder = run_cell(toy_cell, RunEnvironment(tmp_path))
    before = (folder / "summary.json").stat().st_mtime_ns
    run_cell(toy_cell, RunEnvironment(tmp_path), report=stop_after(1))
    assert (folder / "summary.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("round_", [1, 2, 3, 4])
def test_resumed_after_any_round_equals_undisturbed(toy_cell: Cell, tmp_path: Path, round_: int) -> None:
    undisturbed = run_cell(toy_cell, RunEnvironment(tmp_path / "a"))
    with pytest.raises(StopError):
        run_cell(toy_cell, RunEnvironment(tmp_path / "b"), report=stop_after(round_))
    resumed = run_cell(toy_cell, RunEnvironment(tmp_path / "b"))
    assert tables(resumed) == tables(undisturbed)


@pytest.mark.slow
def test_killed_at_ten_random_moments_equals_undisturbed(toy_cell: Cell, tmp_path: Path) -> None:
    begun = time.perf_counter()
    undisturbed = tables(run_cell(toy_cell, RunEnvironment(tmp_path / "a")))
    duration = time.perf_counter() - begun
    environment = RunEnvironment(tmp_path / "b")
    assert all(
        run == undisturbed for run in run_under_kills(toy_cell, environment, 10, 1.5 * duration, random.Random(7))
    )
    assert not list(run_folder(environment.out, toy_cell).glob(".*-*"))


def test_restart_starts_over(toy_cell: Cell, tmp_path: Path) -> None:
    undisturbed = run_cell(toy_cell, RunEnvironment(tmp_path / "a"))
    folder = run_folder(tmp_path, toy_cell)
    folder.mkdir(parents=True)
    (folder / CHECKPOINT).write_bytes(b"rubbish")
    assert tables(run_cell(toy_cell, RunEnvironment(tmp_path), restart=True)) == tables(undisturbed)


def test_a_foreign_checkpoint_is_refused(toy_cell: Cell, tmp_path: Path) -> None:
    other = dataclasses.replace(toy_cell, seed=1)
    theirs, mine = run_cell(other, RunEnvironment(tmp_path)), run_folder(tmp_path, toy_cell)
    mine.mkdir(parents=True)
    (mine / CHECKPOINT).write_bytes((theirs / CHECKPOINT).read_bytes())
    with pytest.raises(UserError, match=f"belongs to cell {other.hash}"):
        run_cell(toy_cell, RunEnvironment(tmp_path))


def test_another_cells_folder_is_refused(toy_cell: Cell, tmp_path: Path) -> None:
    folder = run_folder(tmp_path, toy_cell)
    folder.mkdir(parents=True)
    (folder / "cell.json").write_text("{}")
    with pytest.raises(UserError, match="another cell"):
        run_cell(toy_cell, RunEnvironment(tmp_path))


def test_two_processes_cannot_run_one_cell(toy_cell: Cell, tmp_path: Path) -> None:
    folder = run_folder(tmp_path, toy_cell)
    with open_folder(folder, toy_cell), pytest.raises(UserError, match="another process"):
        run_cell(toy_cell, RunEnvironment(tmp_path))


def test_the_lock_of_a_killed_process_is_released(toy_cell: Cell, tmp_path: Path) -> None:
    folder = run_folder(tmp_path, toy_cell)
    context = multiprocessing.get_context("fork")
    locked = context.Event()

    def hold() -> None:
        with open_folder(folder, toy_cell):
            locked.set()
            time.sleep(600)

    child = context.Process(target=hold)
    child.start()
    assert locked.wait(60)
    with pytest.raises(UserError, match="another process"), open_folder(folder, toy_cell):
        pass
    child.kill()
    child.join()
    with open_folder(folder, toy_cell):
        pass
    with open_folder(folder, toy_cell):  # and by one that ended in the ordinary way
        pass


def test_an_unwritable_out_is_one_line(toy_cell: Cell, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(UserError, match=r"cannot write to .*--out DIR"):
        run_cell(toy_cell, RunEnvironment(blocked))
