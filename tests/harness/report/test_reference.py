"""Published runs, and one's own against them."""

from pathlib import Path

import pandas as pd
import pytest
from support.report_suites import every_kind, report, run_all
from support.run_folders import new_store

from fedprompt.harness.cells.folder import run_folder
from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.core.errors import UserError
from fedprompt.harness.report import reference
from fedprompt.harness.report.reference import against, publish, published_cells, published_records


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Suite, Path, Path]:
    """A suite, the results folder it was run in, and where it is published."""
    out, suite = tmp_path_factory.mktemp("results"), every_kind()
    uri = new_store(out)
    run_all(suite, uri, out)
    report(suite, uri, out)
    place = out / "reference"
    with pytest.MonkeyPatch.context() as patch:
        source = out / "suite.toml"
        source.write_text("title = 'tiny'")
        patch.setattr(reference, "suite_path", lambda _: source)
        publish(suite, out, place)
    return suite, out, place


def test_every_cell_and_record_is_there(published: tuple[Suite, Path, Path]) -> None:
    suite, out, place = published
    cells = published_cells(place)
    assert list(cells.values()) == suite.cells()
    records = published_records(place)
    cell = suite.cells()[0]
    expected = pd.read_csv(run_folder(out, cell) / "records.csv", dtype={"partition": str})
    kept = records[records["cell"] == cell.hash].drop(columns="cell").reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, expected)


def test_publishing_again_gives_the_same_bytes(published: tuple[Suite, Path, Path], tmp_path: Path) -> None:
    suite, out, place = published
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "suite_path", lambda _: place / "suite.toml")
        publish(suite, out, tmp_path)
    for name in (reference.CELLS, reference.RECORDS):
        assert (tmp_path / name).read_bytes() == (place / name).read_bytes()


def test_a_suite_that_is_not_finished_is_not_published(
    published: tuple[Suite, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, out, _ = published
    last = suite.cells()[-1]
    monkeypatch.setattr(reference, "is_done", lambda folder: folder.name != last.hash)
    with pytest.raises(UserError, match=f"1 of {len(suite.cells())} cells are not finished"):
        publish(suite, out, tmp_path / "place")
    assert not (tmp_path / "place").exists()


def test_the_same_runs_are_the_same(published: tuple[Suite, Path, Path]) -> None:
    _, out, place = published
    verdict = against(out / "report" / "tiny", place)
    assert verdict.same
    [line] = verdict.lines
    assert line.startswith("same as ")
    assert line.endswith("largest difference 0.00 points.")


def planted(out: Path, tmp_path: Path, title: str, change: float) -> Path:
    """The report's cells.csv with one row of a table changed."""
    cells = pd.read_csv(out / "report" / "tiny" / "cells.csv")
    cells.loc[cells["title"] == title, "average"] += change
    cells.to_csv(tmp_path / "cells.csv", index=False)
    return tmp_path


def test_a_planted_difference_is_named(published: tuple[Suite, Path, Path], tmp_path: Path) -> None:
    _, out, place = published
    verdict = against(planted(out, tmp_path, "FedPR-S", 0.2), place)
    assert not verdict.same
    assert "FedPR-S, Feature shift, m=1, paper, Average" in verdict.lines[1]
    assert "+20.00 points" in verdict.lines[1]


def test_what_is_missing_is_counted(published: tuple[Suite, Path, Path], tmp_path: Path) -> None:
    _, out, place = published
    cells = pd.read_csv(out / "report" / "tiny" / "cells.csv")
    cells[cells["title"] != "FedPR-S"].to_csv(tmp_path / "cells.csv", index=False)
    assert against(tmp_path, place).lines[-1] == "12 numbers are missing here."  # Average, Worst Local, V = 1..10


def test_a_folder_that_is_no_reference(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="results/reference/embedded"):
        against(tmp_path, tmp_path)
