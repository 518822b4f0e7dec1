"""Published runs."""

import dataclasses
import shutil
from pathlib import Path

import pandas as pd
import pytest
from support.published_runs import Published, give_partition, publish_again, publish_anew

from fedprompt.core.errors import UserError
from fedprompt.harness.report import reference
from fedprompt.harness.report.reference import publish, restore
from fedprompt.harness.report.verified import published_cells, published_records
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.folder import is_done, run_folder


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A suite, the results folder it was run in, and where it is published."""
    return publish_anew(tmp_path_factory.mktemp("results"))


def test_every_cell_and_record_is_there(published: Published) -> None:
    suite, out, place = published
    cells = published_cells(place)
    assert list(cells.values()) == suite.cells()
    records = published_records(place)
    cell = suite.cells()[0]
    expected = pd.read_csv(run_folder(out, cell) / "records.csv", dtype={"partition": str})
    kept = records[records["cell"] == cell.hash].drop(columns="cell").reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, expected)


def test_publishing_again_gives_the_same_bytes(published: Published, tmp_path: Path) -> None:
    suite, out, place = published
    assert publish_again(suite, out, place, tmp_path) == ""
    for name in (reference.CELLS, reference.RECORDS):
        assert (tmp_path / name).read_bytes() == (place / name).read_bytes()


def without(monkeypatch: pytest.MonkeyPatch, cell: Cell) -> None:
    """As if the cell were not finished."""
    monkeypatch.setattr(reference, "is_done", lambda folder: folder.name != cell.hash and is_done(folder))


def test_a_partial_publication_says_what_is_missing(
    published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, out, place = published
    last, count = suite.cells()[-1], len(suite.cells())
    without(monkeypatch, last)
    missing = publish_again(suite, out, place, tmp_path / "part")
    assert missing == f"Incomplete: 1 of {count} cells are not finished ({last.method} 1)."
    assert f"{count - 1} cells. {missing} Published with" in (tmp_path / "part" / "README.md").read_text()
    assert last.hash not in published_cells(tmp_path / "part")


def test_a_publication_does_not_replace_cells_that_are_not_at_hand(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, out, place = published
    without(monkeypatch, suite.cells()[-1])
    with pytest.raises(UserError, match=r"has 1 finished cells that are not finished here.*--resume-from"):
        publish_again(suite, out, place, place)


def test_nothing_finished_is_not_published(published: Published, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no cell of suite 'tiny' is finished"):
        publish(published[0], tmp_path, tmp_path / "place")


def test_published_cells_become_the_run_folders_that_they_were(published: Published, tmp_path: Path) -> None:
    suite, out, place = published
    assert restore(place, suite.cells(), tmp_path).taken == len(suite.cells())
    for cell in suite.cells():
        for name in ("cell.json", "records.csv", "rounds.csv", "summary.json", "done"):
            assert (run_folder(tmp_path, cell) / name).read_bytes() == (run_folder(out, cell) / name).read_bytes()


def test_only_cells_of_this_code_that_are_not_finished_are_taken(published: Published, tmp_path: Path) -> None:
    suite, _, place = published
    first, second, *others = suite.cells()
    edited = dataclasses.replace(second, code="edited")
    assert restore(place, [first, edited], tmp_path) == (1, 1 + len(others))
    assert not run_folder(tmp_path, edited).exists()
    assert restore(place, [first, edited], tmp_path).taken == 0


def test_partitions_are_published_once_and_restored(published: Published, tmp_path: Path) -> None:
    suite, out, place = published
    out = shutil.copytree(out, tmp_path / "out")
    first, second = suite.cells()[:2]
    for cell in (first, second):
        give_partition(run_folder(out, cell))
    publish_again(suite, out, place, tmp_path / "place")
    [file] = (tmp_path / "place" / "partitions").iterdir()
    restore(tmp_path / "place", [first], tmp_path)
    whole = (run_folder(out, first) / "partition.npz").read_bytes()
    assert (run_folder(tmp_path, first) / "partition.npz").read_bytes() == whole == file.read_bytes()
