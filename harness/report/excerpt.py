"""The short version of a published run: one table of accuracies and gains, and the sentences of its report.

README and docs/results.md hold its text; tests compare them with the published files.
"""

from pathlib import Path

import pandas as pd

from fedprompt.harness.report.collect import POLICY_HEADINGS
from fedprompt.harness.report.inference import LEVEL

SECTIONS = ("What the tables say", "Tuned values")  # whose sentences it holds


def excerpt(folder: Path) -> str:
    """Markdown from `tables.csv` and `report.md` of a published run."""
    numbers = pd.read_csv(folder / "tables.csv")
    main = numbers[(numbers["kind"] == "heterogeneity") & (numbers["metric"] == "average")]
    report = (folder / "report.md").read_text()
    return "\n\n".join([_table(main), _note(main), *filter(None, (_said(report, title) for title in SECTIONS))]) + "\n"


def _table(main: pd.DataFrame) -> str:
    """Methods by setting and, where there are several, head policy."""
    columns = list(main[["setting", "policy"]].drop_duplicates().itertuples(index=False, name=None))
    several = main["policy"].nunique() > 1
    heads = [f"{setting}, {POLICY_HEADINGS[policy].lower()}" if several else setting for setting, policy in columns]
    entries = {(n["setting"], n["policy"], n["title"]): _entry(n) for n in main.to_dict("records")}
    rows = [
        f"| {title} | {' | '.join(entries.get((*column, title), '') for column in columns)} |"
        for title in main["title"].unique()
    ]
    return "\n".join([f"| | {' | '.join(heads)} |", "| --- |" + " ---: |" * len(columns), *rows])


def _note(main: pd.DataFrame) -> str:
    control = " or ".join(main.loc[main["control"].astype(bool), "title"].unique()).replace("No prompt", "no prompt")
    same = " under the same policy" if main["policy"].nunique() > 1 else ""
    return (
        f"Average accuracy in percent and, in brackets, the gain over {control}{same}, in points; † where it can be "
        "told from zero at 5 %, adjusted for all comparisons of the column; bold where the best can be told from the "
        "second."
    )


def _entry(number: dict[object, object]) -> str:
    mean, gain, p = (float(str(number[name])) for name in ("mean", "gain", "gain_p_adjusted"))
    accuracy = f"**{mean:.1f}**" if number["leads"] else f"{mean:.1f}"
    if number["control"] or pd.isna(gain):
        return accuracy
    return f"{accuracy} ({gain:+.1f}{'†' if p < LEVEL else ''})".replace("-", "−")


def _said(report: str, title: str) -> str:
    """The sentences of one section of the report, before its first table."""
    section = report.partition(f"\n## {title}\n")[2].partition("\n## ")[0].partition("\n|")[0]
    return "\n".join(line for line in section.splitlines() if line.startswith("- "))
