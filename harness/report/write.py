"""The report of a suite: `<out>/report/<suite>/` and the terminal."""

import io
import shutil
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from filelock import FileLock
from rich.console import Console

from fedprompt.core.errors import UserError
from fedprompt.core.files import write_atomic
from fedprompt.harness.recording.store import find_runs
from fedprompt.harness.report.collect import Recorded, collect
from fedprompt.harness.report.compose import compose_report
from fedprompt.harness.report.document import Document, WrittenFigure
from fedprompt.harness.report.figures.write import write_figures
from fedprompt.harness.report.numbers import Number, csv_text, numbers_frame
from fedprompt.harness.report.reuse import make_stamp, write_stamp
from fedprompt.harness.report.writers import html, latex, markdown, terminal
from fedprompt.harness.running.suite import Suite
from fedprompt.harness.tuning.tuned import tuned_choices, tuning_notes

PLACED = ["table", "setting", "row", "policy", "seed"]  # which number it is
DESCRIBED = ["backbone", "weights", "params", "dataset", "partition", "code"]  # of a cell


def write_report(suite: Suite, uri: str, out: Path, console: Console, accept_code: bool = False) -> Path:
    """Print the tables of ``suite`` and write them as Markdown, LaTeX, CSV and one page; returns the page's file.

    A report that would lose numbers is printed, but does not replace the one that has them. Two processes that report
    one suite take turns.
    """
    folder = out / "report"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / f".{suite.name}.lock"):
        return _write_report(suite, uri, out, console, accept_code)


def _write_report(suite: Suite, uri: str, out: Path, console: Console, accept_code: bool) -> Path:
    from fedprompt.harness.tuning.study_tracker import tuning_frame

    suite_runs = find_runs(uri, suite.cells())
    stamp = make_stamp(suite, suite_runs, out, accept_code)
    recorded = collect(suite, uri, out, accept_code, suite_runs)
    folder = out / "report" / suite.name
    notes = tuning_notes([choice.entry for choice in tuned_choices(suite, out)]) if suite.tuned else []
    loss = _loss(folder / "cells.csv", recorded.results)
    if loss:
        terminal.show(compose_report(recorded, out, tuning_notes=notes)[0], console)
        raise UserError(f"{folder} is left as it is: {loss} Remove the folder if you do not need it.")
    document = write_files(recorded, folder, out, tuning_frame(uri, suite) if suite.tuned else None, notes)
    _show(document, folder, console)
    text = Console(file=io.StringIO(), width=console.width)
    _show(document, folder, text)
    write_stamp(folder, stamp, text.file.getvalue())  # type: ignore[attr-defined]
    return folder / "index.html"


def write_files(
    recorded: Recorded, folder: Path, out: Path, tuning: pd.DataFrame | None = None, tuning_notes: Sequence[str] = ()
) -> Document:
    """Every file of a report but the terminal's text; figures of an earlier one are removed.

    Printed values are looked for in ``out`` first. ``tuning`` has what was tried, for figures; ``tuning_notes`` say how
    much its outcome can be relied on.
    """
    shutil.rmtree(folder / "figures", ignore_errors=True)

    def draw(numbers: Sequence[Number]) -> Sequence[WrittenFigure]:
        return write_figures(recorded, numbers, folder / "figures", tuning)

    document, summary = compose_report(recorded, out, draw, tuning_notes)
    texts = {
        "report.md": markdown.render(document, folder),
        "index.html": html.render(document),
        "tables.csv": csv_text(numbers_frame(recorded.suite, summary.numbers)),
        "cells.csv": csv_text(recorded.results.drop(columns="column")),
    }
    latex.write(document, folder)
    for name, text in texts.items():
        write_atomic(folder / name, text.encode())
    return document


def _show(document: Document, folder: Path, console: Console) -> None:
    terminal.show(document, console)
    console.print(f"Report: {folder / 'index.html'} (also report.md, report.tex, tables.csv)", soft_wrap=True)


def _loss(earlier: Path, results: pd.DataFrame) -> str:
    """What ``results`` lack of an earlier report, and what they differ in; empty if nothing."""
    try:
        before = pd.read_csv(earlier, dtype=str, keep_default_na=False)
        finished = before[before["status"] == "finished"].drop_duplicates(PLACED).set_index(PLACED)
    except (OSError, ValueError, KeyError):  # there is none, or it says nothing
        return ""
    now = results[results["status"] == "missing"].astype({"seed": str}).drop_duplicates(PLACED).set_index(PLACED)
    lost = finished.index.intersection(now.index)
    if lost.empty:
        return ""
    differing = [
        name
        for name in DESCRIBED
        if name in finished and (finished.loc[lost, name].to_numpy() != now.loc[lost, name].to_numpy()).any()
    ]
    why = f"these differ in {', '.join(differing)}" if differing else "MLflow has none of them now"
    return f"{len(lost)} of its {len(finished)} numbers are missing here; {why}."
