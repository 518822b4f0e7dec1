"""The short version of a published run: one table of accuracies and gains, and the sentences of its report.

README and docs/results.md hold its text; tests compare them with the published files.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from fedprompt.harness.report.collect import POLICY_HEADINGS
from fedprompt.harness.report.inference import LEVEL

SAID = "## What the tables say\n"


NOTE = (
    "Average accuracy in percent and, in brackets, the gain over no prompt under the same policy, in points; † where "
    "it can be told from zero at 5 %, adjusted for all comparisons of the column; bold where the best can be told from "
    "the second."
)


def excerpt(folder: Path) -> str:
    """Markdown from `tables.csv` and `report.md` of a published run."""
    return f"{main_table(folder)}\n\n{NOTE}\n\n{said(folder)}\n"


def main_table(folder: Path) -> str:
    """Methods by setting and head policy."""
    numbers = pd.read_csv(folder / "tables.csv")
    main = numbers[(numbers["kind"] == "heterogeneity") & (numbers["metric"] == "average")]
    columns = list(main[["setting", "policy"]].drop_duplicates().itertuples(index=False, name=None))
    entries = {(n["setting"], n["policy"], n["title"]): _entry(n) for n in main.to_dict("records")}
    heads = [f"{setting}, {POLICY_HEADINGS[policy].lower()}" for setting, policy in columns]
    rows = [
        f"| {title} | {' | '.join(entries.get((*column, title), '') for column in columns)} |"
        for title in main["title"].unique()
    ]
    return "\n".join([f"| | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(columns), *rows])


def _entry(number: dict[object, object]) -> str:
    mean, gain, p = (float(str(number[name])) for name in ("mean", "gain", "gain_p_adjusted"))
    accuracy = f"**{mean:.1f}**" if number["leads"] else f"{mean:.1f}"
    if number["control"] or pd.isna(gain):
        return accuracy
    return f"{accuracy} ({gain:+.1f}{'†' if p < LEVEL else ''})".replace("-", "−")


def said(folder: Path) -> str:
    """The report's sentences."""
    return "\n".join(_said((folder / "report.md").read_text()))


def _said(report: str) -> Iterator[str]:
    section = report.partition(SAID)[2].partition("\n## ")[0]
    yield from (line for line in section.splitlines() if line.startswith("- "))
