"""The short version of a published run: one table of accuracies and gains, the warnings and sentences of its report.

README and docs/results.md hold such texts between two comments, of which the first says what to show:

    <!-- excerpt of results/reference/embedded -->                            all of the main tables
    <!-- excerpt of FOLDER: policy global_then_ft; methods head-tune, sgpt -->   one policy, some rows
    <!-- answers of FOLDER -->                                                the sentences of `answers`
    <!-- overview of FOLDER, FOLDER -->                                       the table of `overview`

`python tools/excerpt.py FILE ...` (`make excerpts`) writes them again.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from answers import answers
from overview import overview

from fedprompt.core.errors import UserError
from fedprompt.core.files import write_atomic
from fedprompt.harness.report.collect import POLICY_HEADINGS
from fedprompt.harness.report.document import MISSING
from fedprompt.harness.report.findings import HEADS
from fedprompt.harness.report.inference import LEVEL

MARKED = re.compile(r"(<!-- excerpt of ([^\s:]+)(?:: (.*?))? -->\n)(.*?)(<!-- end of the excerpt -->)", re.DOTALL)
ANSWERED = re.compile(r"(<!-- answers of (\S+) -->\n)(.*?)(<!-- end of the answers -->)", re.DOTALL)
SURVEYED = re.compile(r"(<!-- overview of (.*?) -->\n)(.*?)(<!-- end of the overview -->)", re.DOTALL)
SECTIONS = ("What the tables say", "Tuned values")  # whose sentences the whole excerpt holds


def renew(page: str, root: Path) -> str:
    """The Markdown of ``page`` with all that is marked written again from the folders below ``root``."""
    page = MARKED.sub(lambda found: found[1] + excerpt(root / found[2], _wishes(found[3])) + found[5], page)
    page = ANSWERED.sub(lambda found: found[1] + answers(root / found[2]) + found[4], page)
    return SURVEYED.sub(lambda found: found[1] + overview(_folders(root, found[2])) + found[4], page)


def _folders(root: Path, names: str) -> list[Path]:
    return [root / name.strip() for name in names.split(",")]


def excerpt(folder: Path, wishes: Mapping[str, Sequence[str]] | None = None) -> str:
    """Markdown from `tables.csv` and `report.md` of a published run; ``wishes`` are those of the comment."""
    wishes = wishes or {}
    numbers = pd.read_csv(folder / "tables.csv")
    shown = numbers[(numbers["kind"] == "heterogeneity") & (numbers["metric"] == "average")]
    for wish, values in wishes.items():
        column = {"policy": "policy", "methods": "row"}.get(wish)
        absent = [value for value in values if column is None or value not in set(shown[column])]
        if absent:
            raise UserError(f"excerpt of {folder}: {wish} {absent[0]!r} is not in its main tables")
        shown = shown[shown[column].isin(values)]
    report = (folder / "report.md").read_text()
    said = [_said(report, title) for title in SECTIONS] if not wishes else [_said_of(shown, report)]
    warned = "\n".join(line for line in report.splitlines() if line.startswith("> **"))
    return "\n\n".join(filter(None, [_table(shown), _note(shown), warned, *said])) + "\n"


def _wishes(text: str | None) -> dict[str, list[str]]:
    """`policy a; methods b, c` as lists by their first words."""
    parts = [part.strip().partition(" ") for part in (text or "").split(";") if part.strip()]
    return {name: [value.strip() for value in values.split(",")] for name, _, values in parts}


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
        f"Average accuracy in percent and, in brackets, the gain over {control}{same}, in points; † where it "
        "differs significantly from zero (5 %, adjusted for all comparisons of the column); bold where the best is "
        "significantly better than the second; in sentences, brackets hold the 95 % interval."
    )


def _entry(number: dict[object, object]) -> str:
    mean, gain, p = (float(str(number[name])) for name in ("mean", "gain", "gain_p_adjusted"))
    if pd.isna(mean):
        return MISSING
    accuracy = f"**{mean:.1f}**" if number["leads"] else f"{mean:.1f}"
    if number["control"] or pd.isna(gain):
        return accuracy
    return f"{accuracy} ({gain:+.1f}{'†' if p < LEVEL else ''})".replace("-", "−")


def _said(report: str, title: str) -> str:
    """The sentences of one section of the report, before its first table."""
    section = report.partition(f"\n## {title}\n")[2].partition("\n## ")[0].partition("\n|")[0]
    return "\n".join(line for line in section.splitlines() if line.startswith("- "))


def _said_of(main: pd.DataFrame, report: str) -> str:
    """Of what the tables say, the sentences on the shown settings and policies."""
    shown = main[["table", "setting", "policy"]].drop_duplicates().itertuples(index=False, name=None)
    starts = [f"- {table}, {setting}: {HEADS[policy]}," for table, setting, policy in shown]
    return "\n".join(line for line in _said(report, SECTIONS[0]).splitlines() if line.startswith(tuple(starts)))


def main() -> int:
    """Renew the excerpts of the files that are named."""
    for path in map(Path, sys.argv[1:]):
        text = path.read_text()
        renewed = renew(text, Path())
        if renewed != text:
            write_atomic(path, renewed.encode())
        count = sum(len(marks.findall(text)) for marks in (MARKED, ANSWERED, SURVEYED))
        print(f"{path}: {count} excerpts, {'renewed' if renewed != text else 'up to date'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
