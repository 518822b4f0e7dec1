"""The table of docs/paper-differences.md: where the suite `paper` departs from what the papers say about their methods.

`python tools/paper_differences.py` prints it.
"""

from fedprompt.harness.report.published import method_differences
from fedprompt.harness.running.suite import Suite
from fedprompt.harness.running.suite_file import load_suite


def differences_table(suite: Suite) -> str:
    """All of a suite's, in Markdown, as docs/paper-differences.md shows them: one row per method and parameter."""
    values: dict[tuple[str, str, str], list[str]] = {}
    for entry in suite.planned():
        if entry.row.key == entry.row.method:  # variants depart on purpose
            for change in method_differences(suite, entry.cell):
                listed = values.setdefault((entry.row.title, change.what, change.theirs), [])
                listed += [change.ours] * (change.ours not in listed)
    lines = [f"| {title} | {name} | {theirs} | {', '.join(ours)} |" for (title, name, theirs), ours in values.items()]
    return "\n".join(["| method | parameter | paper | ours |", "| --- " * 4 + "|", *lines])


if __name__ == "__main__":
    print(differences_table(load_suite("paper")))
