import json
import shutil
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.run_folders import a_cell, done_folder, new_store

from fedprompt.harness.recording import tracker as tracking
from fedprompt.harness.recording.contents import git_commit
from fedprompt.harness.recording.marker import MARKER
from fedprompt.harness.recording.store import connect, public
from fedprompt.harness.recording.tracker import Tracker, default_uri, sync
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.folder import run_folder
from fedprompt.harness.running.run import RoundProgress, run_cell

if TYPE_CHECKING:
    from mlflow.entities import Run

NOBODY = "http://127.0.0.1:9"  # the discard port: refused at once


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return new_store(tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds as the tracker sees them."""
    now = [0.0]
    monkeypatch.setattr(tracking, "monotonic", lambda: now[0])
    return now


def runs(uri: str, dataset: str = "glyph-domains") -> list["Run"]:
    client = connect(uri)
    experiment = client.get_experiment_by_name(f"fedprompt/{dataset}")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def curve(uri: str, run: "Run", name: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in connect(uri).get_metric_history(run.info.run_id, name)]


def artifacts(uri: str, run: "Run") -> set[str]:
    return {item.path for item in connect(uri).list_artifacts(run.info.run_id)}


def say(tracker: Tracker, cell: Cell, round_: int, **metrics: float) -> None:
    tracker.round(cell, RoundProgress(cell.hash, round_, cell.protocol.rounds, metrics))


def test_default_store_lies_in_the_output_folder(tmp_path: Path) -> None:
    assert default_uri(tmp_path) == f"sqlite:///{tmp_path}/mlflow.db"


def test_runs_have_short_names_that_differ_early(tmp_path: Path, uri: str) -> None:
    cell = a_cell("pfedbayespt-g", "domains:m=2,shots=8,unseen=half", seed=1)
    Tracker(uri, tmp_path).finish(done_folder(tmp_path, cell))
    assert runs(uri)[0].info.run_name == "pFedBayesPT-G m=2 unseen s1 global"


def test_a_cell_that_only_ablations_show_is_named_after_its_variant(tmp_path: Path, uri: str) -> None:
    cell = a_cell()
    folder, variants = done_folder(tmp_path, cell), {cell.hash: "long-prompt"}
    Tracker(uri, tmp_path, "ablation", variants=variants).finish(folder)
    [run] = runs(uri)
    assert (run.info.run_name, run.data.tags["variant"]) == ("long-prompt m=1 s0 local", "long-prompt")
    Tracker(uri, tmp_path).finish(folder)  # `sync` knows no suite
    assert runs(uri)[0].data.tags["variant"] == "long-prompt"
    Tracker(uri, tmp_path, "whole").finish(folder)  # a main table shows it as well
    Tracker(uri, tmp_path, "ablation", variants=variants).finish(folder)
    [run] = runs(uri)
    assert (run.info.run_name, run.data.tags["variant"]) == ("FedVPT m=1 s0 local", "main")


def test_finish_records_everything(tmp_path: Path, uri: str) -> None:
    cell = a_cell()
    folder = done_folder(tmp_path, cell, [[0.2, 0.4], [0.1, 0.5], [0.3, 0.7]])
    assert Tracker(uri, tmp_path, "smoke").finish(folder)
    [run] = runs(uri)
    tags = {key: value for key, value in run.data.tags.items() if not key.startswith("mlflow.")}
    assert tags.pop("records")
    assert tags == {
        "method": "fedvpt",
        "dataset": "glyph-domains",
        "partition": "domains:m=1",
        "partition_hash": "0123456789abcdef",
        "data_checksum": "glyphs",
        "seed": "0",
        "suite": "smoke",
        "phase": "final",
        "head": "local",
        "variant": "main",
        "cell_hash": cell.hash,
        "cell_setup": cell.setup,
        "git_commit": git_commit(),
        "backbone": "micro-vit",
        "weights": "random",
        "code": cell.code,
    }
    assert run.info.status == "FINISHED"
    assert run.data.params["protocol.rounds"] == "3"
    assert run.data.params["backbone.image_size"] == "32"
    assert {f"method.{key}" for key in cell.params} <= set(run.data.params)
    assert run.data.metrics["average"] == pytest.approx((0.3 + 0.5) / 2)
    assert run.data.metrics["worst_local"] == pytest.approx((0.1 + 0.3) / 2)
    assert run.data.metrics["floats_up"] == 50
    assert curve(uri, run, "round/worst_local") == [(1, 0.2), (2, 0.1), (3, 0.3)]
    assert curve(uri, run, "round/loss") == [(1, 1.0), (2, 1 / 2), (3, 1 / 3)]
    assert curve(uri, run, "round/bytes_up") == [(1, 400), (2, 400), (3, 400)]
    assert artifacts(uri, run) == {"cell.json", "records.csv", "rounds.csv", "summary.json"}
    assert (tmp_path / "mlartifacts").is_dir()


def test_diagnostics_of_a_method_are_curves(tmp_path: Path, uri: str) -> None:
    assert Tracker(uri, tmp_path).finish(done_folder(tmp_path, a_cell()))
    assert curve(uri, runs(uri)[0], "round/diagnostics/kl") == [(1, 2.0), (2, 4.0), (3, 6.0)]


def test_more_points_than_one_call_takes(tmp_path: Path, uri: str) -> None:
    rounds = 350  # five curves: 1750 points
    Tracker(uri, tmp_path).finish(done_folder(tmp_path, a_cell(rounds=rounds)))
    [run] = runs(uri)
    assert [step for step, _ in curve(uri, run, "round/bytes_up")] == list(range(1, rounds + 1))


def test_bench_then_sync_twice_is_one_run(tmp_path: Path, uri: str) -> None:
    folder = done_folder(tmp_path, a_cell())
    assert Tracker(uri, tmp_path).finish(folder)
    assert sync(tmp_path, uri) == (0, 1, 0)
    assert sync(tmp_path, uri) == (0, 1, 0)
    assert len(runs(uri)) == 1


def test_killed_between_mlflow_and_marker_is_one_run(tmp_path: Path, uri: str) -> None:
    folder = done_folder(tmp_path, a_cell())
    Tracker(uri, tmp_path).finish(folder)
    (folder / MARKER).unlink()
    assert sync(tmp_path, uri) == (0, 1, 0)
    assert len(runs(uri)) == 1


@pytest.mark.parametrize("call", ["log_batch", "log_artifact", "set_terminated"])
def test_killed_while_recording_is_completed(
    tmp_path: Path, uri: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = done_folder(tmp_path, a_cell())
    tracker = Tracker(uri, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("mlflow.MlflowClient." + call, lambda *_: 1 / 0)
        assert not tracker.finish(folder)
    assert sync(tmp_path, uri) == (1, 0, 0)
    [run] = runs(uri)
    assert run.info.status == "FINISHED"
    assert curve(uri, run, "round/bytes_up") == [(1, 400), (2, 400), (3, 400)]
    assert len(curve(uri, run, "average")) == 1
    assert "summary.json" in artifacts(uri, run)


def test_two_syncs_at_once_are_one_run_per_cell(tmp_path: Path, uri: str) -> None:
    for seed in range(4):
        done_folder(tmp_path, a_cell(seed=seed))
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda _: sync(tmp_path, uri), range(2)))
    assert [sum(column) for column in zip(*both, strict=True)] == [4, 4, 0]
    assert sorted(run.data.tags["seed"] for run in runs(uri)) == ["0", "1", "2", "3"]


def test_a_marker_of_a_database_since_deleted_is_not_believed(tmp_path: Path, uri: str) -> None:
    folder = done_folder(tmp_path, a_cell())
    stores = {uri: {"experiment": "1@1700000000000", "suites": [], "run": "0" * 32}}
    (folder / MARKER).write_text(json.dumps({"suites": [], "stores": stores}))
    assert sync(tmp_path, uri) == (1, 0, 0)
    assert len(runs(uri)) == 1


def test_a_cell_of_two_suites_is_one_run_with_both_names(tmp_path: Path, uri: str) -> None:
    folder = done_folder(tmp_path, a_cell())
    for suite in ("smoke", "embedded", "smoke"):
        assert Tracker(uri, tmp_path, suite).finish(folder)
    assert [run.data.tags["suite"] for run in runs(uri)] == ["embedded, smoke"]


def test_started_over_with_other_results_replaces_the_run(tmp_path: Path, uri: str) -> None:
    cell = a_cell()
    Tracker(uri, tmp_path).finish(done_folder(tmp_path, cell, [[0.9, 0.9]] * 3))
    shutil.rmtree(run_folder(tmp_path, cell))
    Tracker(uri, tmp_path).finish(done_folder(tmp_path, cell, [[0.5, 0.5]] * 3))
    assert [run.data.metrics["average"] for run in runs(uri)] == [0.5]


def test_rounds_are_sent_together_every_ten_seconds(tmp_path: Path, uri: str, clock: list[float]) -> None:
    cell, tracker = a_cell(rounds=50), Tracker(uri, tmp_path)
    say(tracker, cell, 1, loss=3.0)
    clock[0] = 9.0
    say(tracker, cell, 2, loss=2.0)
    assert runs(uri) == []
    clock[0] = 10.0
    say(tracker, cell, 3, loss=1.0)
    [run] = runs(uri)
    assert run.info.status == "RUNNING"
    assert curve(uri, run, "round/loss") == [(1, 3.0), (2, 2.0), (3, 1.0)]


def test_a_resumed_cell_continues_its_run(
    tmp_path: Path, uri: str, clock: list[float], toy_cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "SEND_EVERY", 0.0)
    killed = Tracker(uri, tmp_path)

    def report(progress: RoundProgress) -> None:
        killed.round(toy_cell, progress)
        if progress.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cell(toy_cell, RunEnvironment(tmp_path), report)
    [begun] = runs(uri, "toy")
    resumed = Tracker(uri, tmp_path)
    folder = run_cell(toy_cell, RunEnvironment(tmp_path), lambda progress: resumed.round(toy_cell, progress))
    assert resumed.finish(folder)
    [run] = runs(uri, "toy")
    assert (run.info.run_id, run.info.status) == (begun.info.run_id, "FINISHED")
    assert [step for step, _ in curve(uri, run, "round/loss")] == [1, 2, 3, 4]
    assert [step for step, _ in curve(uri, run, "round/average")] == [2, 3, 4]
    assert "partition.npz" in artifacts(uri, run)


def test_curves_read_from_the_folder_add_no_second_point(
    tmp_path: Path, uri: str, clock: list[float], toy_cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "SEND_EVERY", 0.0)
    live = Tracker(uri, tmp_path)
    folder = run_cell(toy_cell, RunEnvironment(tmp_path), lambda progress: live.round(toy_cell, progress))
    assert Tracker(uri, tmp_path).finish(folder)  # another process, which does not know what was sent
    [run] = runs(uri, "toy")
    for name, steps in {"loss": [1, 2, 3, 4], "average": [2, 3, 4], "worst_local": [2, 3, 4]}.items():
        assert [step for step, _ in curve(uri, run, f"round/{name}")] == steps


def test_a_cell_started_over_while_running_begins_a_new_run(
    tmp_path: Path, uri: str, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "SEND_EVERY", 0.0)
    cell = a_cell()
    for loss in (5.0, 4.0):
        say(Tracker(uri, tmp_path), cell, 1, loss=loss)
    [run] = runs(uri)
    assert curve(uri, run, "round/loss") == [(1, 4.0)]


def test_failure_is_recorded_and_forgotten_after_success(tmp_path: Path, uri: str) -> None:
    cell, tracker = a_cell(), Tracker(uri, tmp_path)
    tracker.failed(cell, "loss is not finite")
    [run] = runs(uri)
    assert (run.info.status, run.data.tags["failure"]) == ("FAILED", "loss is not finite")
    assert tracker.finish(done_folder(tmp_path, cell))
    [run] = runs(uri)
    assert run.info.status == "FINISHED"
    assert "failure" not in run.data.tags


def test_failure_after_success_is_not_recorded(tmp_path: Path, uri: str) -> None:
    cell, tracker = a_cell(), Tracker(uri, tmp_path)
    tracker.finish(done_folder(tmp_path, cell))
    tracker.failed(cell, "disk full")
    assert [run.info.status for run in runs(uri)] == ["FINISHED"]


def test_a_cell_that_fails_when_started_over_loses_its_old_results(tmp_path: Path, uri: str) -> None:
    cell = a_cell()
    folder = done_folder(tmp_path, cell)
    Tracker(uri, tmp_path).finish(folder)
    tracker = Tracker(uri, tmp_path, restarted={cell.hash})
    tracker.failed(cell, "the data are missing")  # before anything was begun: the folder is still finished
    assert [run.info.status for run in runs(uri)] == ["FINISHED"]
    (folder / "done").unlink()
    tracker.failed(cell, "its process died")
    (run,) = runs(uri)
    assert (run.info.status, run.data.tags["failure"]) == ("FAILED", "its process died")


def test_server_away_warns_once_and_sync_records_later(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [done_folder(tmp_path, a_cell(seed=seed)) for seed in range(3)]
    away = Tracker(NOBODY, tmp_path, "smoke")
    connect(NOBODY)  # the import is not what is timed
    started = time.perf_counter()
    assert [away.finish(folder) for folder in folders] == [False, False, False]
    assert time.perf_counter() - started < 15
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: not recorded in MLflow at {NOBODY} (")
    assert line.endswith("fedprompt sync")
    assert sync(tmp_path, uri) == (3, 0, 0)
    assert {run.data.tags["suite"] for run in runs(uri)} == {"smoke"}


def test_server_away_is_asked_again_after_a_minute(
    tmp_path: Path, uri: str, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tracker = done_folder(tmp_path, a_cell()), Tracker(uri, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(tracking, "connect", lambda _: 1 / 0)
        assert not tracker.finish(folder)
    clock[0] = 59.0
    assert not tracker.finish(folder)
    clock[0] = 61.0
    assert tracker.finish(folder)


@pytest.fixture
def held(uri: str) -> Iterator[None]:
    """Another program writes to the database and does not stop."""
    with sqlite3.connect(uri.removeprefix("sqlite:///"), isolation_level=None) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


def test_locked_database_does_not_stop_the_run(tmp_path: Path, uri: str, held: None) -> None:
    assert not Tracker(f"{uri}?timeout=0.1", tmp_path).finish(done_folder(tmp_path, a_cell()))


def test_database_that_cannot_be_made_does_not_stop_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    tracker = Tracker(f"sqlite:///{tmp_path}/file/mlflow.db", tmp_path)
    assert not tracker.finish(done_folder(tmp_path, a_cell()))
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_sync_goes_on_after_a_damaged_folder(tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    done_folder(tmp_path, a_cell(seed=0))
    (done_folder(tmp_path, a_cell(seed=1)) / "summary.json").write_text("{")
    assert sync(tmp_path, uri) == (1, 0, 1)
    assert "cannot be read (ValueError: summary.json" in capsys.readouterr().err


def test_sync_leaves_unfinished_runs_alone(tmp_path: Path, uri: str) -> None:
    (done_folder(tmp_path, a_cell()) / "done").unlink()
    assert sync(tmp_path, uri) == (0, 0, 0)


def test_password_of_a_server_is_not_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = done_folder(tmp_path, a_cell())
    Tracker("http://me:secret@127.0.0.1:9", tmp_path, "smoke").finish(folder)
    assert "secret" not in capsys.readouterr().err + (folder / MARKER).read_text()
    assert public("http://me:secret@host:1/x") == "http://host:1/x"


def test_recording_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also not while a new database is made."""
    done_folder(tmp_path, a_cell())
    assert sync(tmp_path, default_uri(tmp_path)) == (1, 0, 0)
    assert capfd.readouterr() == ("", "")


def test_commit_is_forty_digits_in_a_checkout() -> None:
    commit = git_commit().removesuffix("-dirty")
    assert commit == "" or (len(commit) == 40 and int(commit, 16))
