"""What a store may refuse, repeat or lose, and what a damaged folder costs: one run, never the others."""

import json
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mlflow.exceptions import INVALID_PARAMETER_VALUE, MlflowException
from support.run_folders import a_cell, done_folder, new_store

from fedprompt.harness.recording import store, tracker
from fedprompt.harness.recording.contents import accepted_name
from fedprompt.harness.recording.marker import MARKER
from fedprompt.harness.recording.store import connect
from fedprompt.harness.recording.tracker import Tracker, sync
from fedprompt.harness.running.folder import finish

if TYPE_CHECKING:
    from mlflow.entities import Run


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return new_store(tmp_path)


def runs(uri: str) -> list["Run"]:
    client = connect(uri)
    experiment = client.get_experiment_by_name("fedprompt/glyph-domains")
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


@pytest.mark.parametrize("name", ["KL(q||p)", "loss, first", "../above", "a//b", "x" * 300, "/top", "ϑ²"])
def test_a_name_that_mlflow_refuses_is_made_acceptable(tmp_path: Path, uri: str, name: str) -> None:
    folder = done_folder(tmp_path, a_cell())
    table = folder / "rounds.csv"
    header, rest = table.read_text().split("\n", 1)
    table.write_text(f"{header.replace('diagnostics/kl', chr(34) + 'diagnostics/' + name + chr(34))}\n{rest}")
    finish(folder, json.loads((folder / "summary.json").read_text()))
    assert Tracker(uri, tmp_path).finish(folder)
    [run] = runs(uri)
    assert run.data.metrics[accepted_name(f"round/diagnostics/{name}")] == 6.0


def test_changed_names_stay_different_and_good_ones_stay() -> None:
    assert accepted_name("a|b") != accepted_name("a(b")
    assert accepted_name("round/diagnostics/kl: first") == "round/diagnostics/kl: first"


def test_a_refused_run_is_named_and_the_rest_recorded(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [a_cell(seed=seed) for seed in range(3)]
    for cell in cells:
        done_folder(tmp_path, cell)
    complete = Tracker._complete

    def refuse(self: Tracker, run: "Run", finished: tracker.FinishedRun, live: tracker._Live) -> None:
        if finished.cell.hash == cells[1].hash:
            raise MlflowException("no such name", INVALID_PARAMETER_VALUE)
        complete(self, run, finished, live)

    monkeypatch.setattr(Tracker, "_complete", refuse)
    assert sync(tmp_path, uri) == (2, 0, 1)
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(f"refused {cells[1].label} ({cells[1].hash}): MlflowException: no such name")


def test_a_run_that_was_created_twice_is_one_in_the_end(tmp_path: Path, uri: str) -> None:
    cell = a_cell()
    for _ in range(2):  # the answer to the first request came too late
        Tracker(uri, tmp_path)._create(cell, 0.0, [])
    assert Tracker(uri, tmp_path).finish(done_folder(tmp_path, cell))
    assert [run.info.status for run in runs(uri)] == ["FINISHED"]


def test_an_experiment_that_was_created_twice_is_one(tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = type(connect(uri))
    create = client.create_experiment

    def create_twice(self: object, *args: object) -> object:
        create(self, *args)
        return create(self, *args)

    monkeypatch.setattr(client, "create_experiment", create_twice)
    assert Tracker(uri, tmp_path).finish(done_folder(tmp_path, a_cell()))


def test_a_half_made_database_is_made_anew(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "mlflow.db")  # as a first migration leaves it that is killed
    database.executescript("CREATE TABLE experiments (experiment_id INTEGER); CREATE TABLE metrics (key TEXT);")
    database.close()
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert Tracker(uri, tmp_path).finish(done_folder(tmp_path, a_cell()))
    assert [run.info.status for run in runs(uri)] == ["FINISHED"]


def test_a_database_that_is_being_made_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "connect", killed)
    with pytest.raises(KeyboardInterrupt):
        store.make_database(f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mlflow.db"
    path.write_bytes(b"my diary, not a database" * 100)
    assert not Tracker(f"sqlite:///{path}", tmp_path).finish(done_folder(tmp_path, a_cell()))
    assert path.read_bytes().startswith(b"my diary")
    assert "not recorded in MLflow" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["summary.json", "records.csv", "rounds.csv", "cell.json"])
def test_a_damaged_folder_is_named_and_the_others_recorded(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    damaged, intact = (done_folder(tmp_path, a_cell(seed=seed)) for seed in (0, 1))
    (damaged / name).write_bytes(b"\xff{")
    mlflow = Tracker(uri, tmp_path)
    assert [mlflow.finish(folder) for folder in (damaged, intact)] == [False, True]
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: {damaged} cannot be read (")


def test_a_damaged_marker_is_forgotten(tmp_path: Path, uri: str) -> None:
    folder = done_folder(tmp_path, a_cell())
    assert Tracker(uri, tmp_path).finish(folder)
    (folder / MARKER).write_text("[1]")
    assert sync(tmp_path, uri) == (0, 1, 0)
    assert len(runs(uri)) == 1


def test_a_folder_that_cannot_be_written_to_is_recorded_all_the_same(
    tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedprompt.harness.recording.marker.write_atomic", full)
    folders = [done_folder(tmp_path, a_cell(seed=seed)) for seed in (0, 1)]
    assert [Tracker(uri, tmp_path, "smoke").finish(folder) for folder in folders] == [True, True]
    assert len(runs(uri)) == 2
    assert f"warning: {folders[0]} cannot be written to (No space left on device)" in capsys.readouterr().err
