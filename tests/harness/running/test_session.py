"""Sessions: what is finished is not run again, and observers hear of everything once."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.run_folders import a_cell, done_folder

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.harness.running import run as run_module
from fedprompt.harness.running import session as session_module
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.folder import is_locked, open_folder, run_folder
from fedprompt.harness.running.run import RoundProgress
from fedprompt.harness.running.session import run_cells

MICRO = BackboneSpec("micro-vit", "random", 32)


class Notes:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str | int]] = []

    def round(self, cell: Cell, progress: RoundProgress) -> None:
        self.told.append((cell.hash, progress.round))

    def finish(self, folder: Path) -> None:
        self.told.append((folder.name, "finished"))

    def failed(self, cell: Cell, reason: str) -> None:
        self.told.append((cell.hash, reason.split()[0]))


def test_observers_hear_of_rounds_and_ends(toy_cell: Cell, tmp_path: Path) -> None:
    notes, others = Notes(), Notes()
    (outcome,) = run_cells([toy_cell], RunEnvironment(tmp_path), [notes, others])
    key = toy_cell.hash
    assert notes.told == others.told == [(key, 1), (key, 2), (key, 3), (key, 4), (key, "finished")]
    assert (outcome.cell, outcome.error) == (toy_cell, "")


def test_finished_cells_are_reported_but_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "execute", lambda cells, *_: iter([] if not cells else 1 / 0))
    monkeypatch.setattr(session_module, "data_checksum", lambda *_: "glyphs")
    cell, notes = a_cell(), Notes()
    folder = done_folder(tmp_path, cell)
    (outcome,) = run_cells([cell], RunEnvironment(tmp_path), [notes])
    assert (outcome.folder, outcome.error) == (folder, "")
    assert notes.told == [(cell.hash, "finished")]


def test_a_finished_cell_of_other_data_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "data_checksum", lambda *_: "other glyphs")
    cell, notes = a_cell(), Notes()
    done_folder(tmp_path, cell)
    (outcome,) = run_cells([cell], RunEnvironment(tmp_path), [notes])
    assert outcome.error.startswith("it was finished with other data (checksum glyphs, now other glyphs)")
    assert notes.told == [(cell.hash, "it")]


@pytest.mark.parametrize("name", ["records.csv", "summary.json", "done", "rounds.csv"])
def test_a_damaged_file_of_a_finished_cell_fails_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(session_module, "data_checksum", lambda *_: "glyphs")
    damaged, intact = a_cell(), a_cell(seed=1)
    folder = done_folder(tmp_path, damaged)
    done_folder(tmp_path, intact)
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    outcomes = run_cells([damaged, intact], RunEnvironment(tmp_path))
    assert [outcome.error.split(";")[0] for outcome in outcomes] == [
        f"{folder / name} is not what the finished run wrote",
        "",
    ]
    assert "--restart-cell" in outcomes[0].error


def test_replaced_images_of_a_folder_are_noticed(tmp_path: Path) -> None:
    images = tmp_path / "pets"
    pictures = np.random.default_rng(0).integers(0, 255, (2, 6, 8, 8, 3), np.uint8)
    for label, name in enumerate(("cat", "dog")):
        (images / name).mkdir(parents=True)
        for index, pixels in enumerate(pictures[label]):
            Image.fromarray(pixels).save(images / name / f"{index}.png")
    protocol = {"rounds": 1, "epochs": 1}
    cell = make_cell("fedvpt", f"folder:{images}", "dirichlet:alpha=10,clients=2,min_size=1", MICRO, 0, {}, protocol)
    assert not run_cells([cell], RunEnvironment(tmp_path / "out"))[0].error
    Image.fromarray(255 - pictures[0][0]).save(images / "cat" / "0.png")
    run_module._dataset.cache_clear()  # as a new process would
    assert "finished with other data" in run_cells([cell], RunEnvironment(tmp_path / "out"))[0].error


def test_restart_runs_finished_cells(toy_cell: Cell, tmp_path: Path) -> None:
    run_cells([toy_cell], RunEnvironment(tmp_path))
    notes = Notes()
    run_cells([toy_cell], RunEnvironment(tmp_path), [notes], restart=True)
    assert len(notes.told) == 5


def test_one_cell_starts_over_by_its_hash(toy_cell: Cell, tmp_path: Path) -> None:
    other = dataclasses.replace(toy_cell, seed=1)
    run_cells([toy_cell, other], RunEnvironment(tmp_path))
    notes = Notes()
    run_cells([toy_cell, other], RunEnvironment(tmp_path), [notes], restart={other.hash})
    assert notes.told == [
        (toy_cell.hash, "finished"),
        *((other.hash, r) for r in (1, 2, 3, 4)),
        (other.hash, "finished"),
    ]


@pytest.mark.parametrize(("report_unstarted", "told"), [(True, 1), (False, 0)])
def test_bad_input_fails_alone_and_is_told_if_wanted(
    toy_cell: Cell, tmp_path: Path, report_unstarted: bool, told: int
) -> None:
    bad = dataclasses.replace(toy_cell, partition="classes:s=3,clients=5")
    notes = Notes()
    outcomes = run_cells([bad, toy_cell], RunEnvironment(tmp_path), [notes], report_unstarted=report_unstarted)
    assert [bool(outcome.error) for outcome in outcomes] == [True, False]
    assert sum(key == bad.hash for key, _ in notes.told) == told
    assert (toy_cell.hash, "finished") in notes.told


def test_a_cell_that_another_process_runs_has_not_failed(toy_cell: Cell, tmp_path: Path) -> None:
    notes, folder = Notes(), run_folder(tmp_path, toy_cell)
    with open_folder(folder, toy_cell):
        assert is_locked(folder)
        (outcome,) = run_cells([toy_cell], RunEnvironment(tmp_path), [notes])
    assert (outcome.locked, "another process" in outcome.error) == (True, True)
    assert notes.told == []
    assert not (folder / "failed.json").exists()
    assert not is_locked(folder)
