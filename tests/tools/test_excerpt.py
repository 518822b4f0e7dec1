"""The short version of a published run."""

from pathlib import Path

import pandas as pd
import pytest
from excerpt import excerpt, renew

from fedprompt.core.errors import UserError

NUMBERS = {
    "kind": ["heterogeneity"] * 3 + ["unseen"],
    "metric": ["average"] * 4,
    "setting": ["m=1"] * 3 + ["m=2"],
    "policy": ["local"] * 4,
    "table": ["Shift"] * 3 + ["Other"],
    "row": ["head-tune", "fedvpt", "sgpt", "fedvpt"],
    "title": ["No prompt", "FedVPT", "SGPT", "FedVPT"],
    "mean": [50.04, 55.06, 49.0, 1.0],
    "gain": [float("nan"), 5.02, -1.04, 0.0],
    "gain_p_adjusted": [float("nan"), 0.01, 0.3, 1.0],
    "leads": [False, True, False, False],
    "control": [True, False, False, False],
}


REPORT = """# T

## What the tables say

- Shift, m=1: Under a local head, A gains.
- Shift, m=1: Under a global head, B gains.
- Other, m=2: Under a local head, C gains.

## More

- no

## Tuned values

- Tuned.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pd.DataFrame(NUMBERS).to_csv(tmp_path / "tables.csv", index=False)
    (tmp_path / "report.md").write_text(REPORT)
    return tmp_path


def test_accuracies_gains_marks_and_sentences(folder: Path) -> None:
    lines = excerpt(folder).splitlines()
    assert lines[0] == "| | m=1 |"
    assert "the gain over no prompt, in points" in lines[6]
    assert lines[2:5] == ["| No prompt | 50.0 |", "| FedVPT | **55.1** (+5.0†) |", "| SGPT | 49.0 (−1.0) |"]
    assert lines[-2:] == ["", "- Tuned."]
    assert len([line for line in lines if line.endswith("gains.")]) == 3


def test_what_is_not_finished_is_a_dash(folder: Path) -> None:
    pd.DataFrame({**NUMBERS, "mean": [50.04, 55.06, float("nan"), 1.0]}).to_csv(folder / "tables.csv", index=False)
    assert "| SGPT | – |" in excerpt(folder)


def test_warnings_of_the_report_are_kept(folder: Path) -> None:
    (folder / "report.md").write_text(REPORT.replace("# T\n", "# T\n\n> **COLLAPSED: one.**  \n", 1))
    assert "\n\n> **COLLAPSED: one.**  \n\n- Shift" in excerpt(folder)


def test_some_rows_of_one_policy_with_their_sentences(folder: Path) -> None:
    comment = f"<!-- excerpt of {folder.name}: policy local; methods head-tune, sgpt -->"
    page = f"a\n{comment}\nold\n<!-- end of the excerpt -->\nb\n"
    renewed = renew(page, folder.parent)
    lines = renewed.splitlines()
    assert lines[:2] == page.splitlines()[:2]
    assert lines[4:6] == ["| No prompt | 50.0 |", "| SGPT | 49.0 (−1.0) |"]
    assert lines[-4:] == ["", "- Shift, m=1: Under a local head, A gains.", "<!-- end of the excerpt -->", "b"]
    assert renew(renewed, folder.parent) == renewed


@pytest.mark.parametrize("wishes", ["methods fedavg", "policy globl", "rows sgpt"])
def test_what_a_table_does_not_have_is_refused(folder: Path, wishes: str) -> None:
    page = f"<!-- excerpt of {folder.name}: {wishes} -->\n<!-- end of the excerpt -->"
    with pytest.raises(UserError, match="is not in its main tables"):
        renew(page, folder.parent)
