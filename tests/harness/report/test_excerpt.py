"""The short version of a published run."""

from pathlib import Path

import pandas as pd

from fedprompt.harness.report.excerpt import excerpt

NUMBERS = {
    "kind": ["heterogeneity"] * 3 + ["unseen"],
    "metric": ["average"] * 4,
    "setting": ["m=1"] * 3 + ["m=2"],
    "policy": ["local"] * 4,
    "title": ["No prompt", "FedVPT", "SGPT", "FedVPT"],
    "mean": [50.04, 55.06, 49.0, 1.0],
    "gain": [float("nan"), 5.02, -1.04, 0.0],
    "gain_p_adjusted": [float("nan"), 0.01, 0.3, 1.0],
    "leads": [False, True, False, False],
    "control": [True, False, False, False],
}


def test_accuracies_gains_marks_and_sentences(tmp_path: Path) -> None:
    pd.DataFrame(NUMBERS).to_csv(tmp_path / "tables.csv", index=False)
    (tmp_path / "report.md").write_text(
        "# T\n\n## What the tables say\n\n- A gains.\n- B does not.\n\n## More\n\n- no\n\n## Tuned values\n\n- Tuned.\n"
    )
    lines = excerpt(tmp_path).splitlines()
    assert lines[0] == "| | m=1 |"
    assert "the gain over no prompt, in points" in lines[6]
    assert lines[2:5] == ["| No prompt | 50.0 |", "| FedVPT | **55.1** (+5.0†) |", "| SGPT | 49.0 (−1.0) |"]
    assert lines[-4:] == ["- A gains.", "- B does not.", "", "- Tuned."]
