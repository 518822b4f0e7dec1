"""Gains over several published runs at once."""

from pathlib import Path

import pandas as pd
from excerpt import renew
from overview import overview


def a_run(folder: Path, **gains: list[tuple[float, float]]) -> Path:
    """A folder with a table: gain and adjusted p-value of each column, by title."""
    lines = [
        {"kind": "heterogeneity", "metric": metric, "title": title, "gain": gain, "gain_p_adjusted": p}
        for title, columns in gains.items()
        for gain, p in columns
        for metric in ("average", "worst_local")
    ]
    folder.mkdir()
    pd.DataFrame(lines).to_csv(folder / "tables.csv", index=False)
    return folder


def test_only_significant_differences_are_counted(tmp_path: Path) -> None:
    run = a_run(tmp_path / "one", A=[(3.0, 0.01), (2.0, 0.2), (-1.0, 0.04)])
    assert "| A | 1 / 1 / 3, +2.0 |" in overview([run]).splitlines()


def test_a_method_that_a_run_does_not_have_is_missing_there(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "one", A=[(1.0, 0.9)]), a_run(tmp_path / "two", B=[(-2.04, 0.01)])]
    lines = overview(runs).splitlines()
    assert lines[0] == "|  | `one` | `two` |"
    assert lines[2:4] == ["| A | 0 / 0 / 1, +1.0 | – |", "| B | – | 0 / 1 / 1, −2.0 |"]


def test_a_page_has_it_between_its_marks(tmp_path: Path) -> None:
    a_run(tmp_path / "one", A=[(1.0, 0.9)])
    page = "<!-- overview of one -->\nSTALE\n<!-- end of the overview -->\n"
    renewed = renew(page, tmp_path)
    assert "STALE" not in renewed
    assert "| A | 0 / 0 / 1, +1.0 |" in renewed
    assert renew(renewed, tmp_path) == renewed
