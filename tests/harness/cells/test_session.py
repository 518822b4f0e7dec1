"""Sessions: what is finished is not run again, and observers hear of everything once."""

import dataclasses
from pathlib import Path

import pytest
from support.run_folders import a_cell, done_folder

from fedprompt.harness.cells import session as session_module
from fedprompt.harness.cells.cell import Cell
from fedprompt.harness.cells.folder import is_locked, open_folder, run_folder
from fedprompt.harness.cells.run import RoundProgress
from fedprompt.harness.cells.session import run_cells
from fedprompt.harness.cells.site import Site


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
    (outcome,) = run_cells([toy_cell], Site(tmp_path), [notes, others])
    key = toy_cell.hash
    assert notes.told == others.told == [(key, 1), (key, 2), (key, 3), (key, 4), (key, "finished")]
    assert (outcome.cell, outcome.error) == (toy_cell, "")


def test_finished_cells_are_reported_but_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "execute", lambda cells, *_: iter([] if not cells else 1 / 0))
    cell, notes = a_cell(), Notes()
    folder = done_folder(tmp_path, cell)
    (outcome,) = run_cells([cell], Site(tmp_path), [notes])
    assert (outcome.folder, outcome.error) == (folder, "")
    assert notes.told == [(cell.hash, "finished")]


def test_restart_runs_finished_cells(toy_cell: Cell, tmp_path: Path) -> None:
    run_cells([toy_cell], Site(tmp_path))
    notes = Notes()
    run_cells([toy_cell], Site(tmp_path), [notes], restart=True)
    assert len(notes.told) == 5


def test_one_cell_starts_over_by_its_hash(toy_cell: Cell, tmp_path: Path) -> None:
    other = dataclasses.replace(toy_cell, seed=1)
    run_cells([toy_cell, other], Site(tmp_path))
    notes = Notes()
    run_cells([toy_cell, other], Site(tmp_path), [notes], restart={other.hash})
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
    outcomes = run_cells([bad, toy_cell], Site(tmp_path), [notes], report_unstarted=report_unstarted)
    assert [bool(outcome.error) for outcome in outcomes] == [True, False]
    assert sum(key == bad.hash for key, _ in notes.told) == told
    assert (toy_cell.hash, "finished") in notes.told


def test_a_cell_that_another_process_runs_has_not_failed(toy_cell: Cell, tmp_path: Path) -> None:
    notes, folder = Notes(), run_folder(tmp_path, toy_cell)
    with open_folder(folder, toy_cell):
        assert is_locked(folder)
        (outcome,) = run_cells([toy_cell], Site(tmp_path), [notes])
    assert (outcome.locked, "another process" in outcome.error) == (True, True)
    assert notes.told == []
    assert not (folder / "failed.json").exists()
    assert not is_locked(folder)
