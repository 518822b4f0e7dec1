import dataclasses
import io
import re
from pathlib import Path

from rich.console import Console
from support.report_suites import a_document

from fedprompt.harness.report.document import Column, Document, Entry, Grid, Note, Section
from fedprompt.harness.report.writers.terminal import show


def printed(document: Document, width: int = 100, colour: bool = False) -> str:
    system = "standard" if colour else None
    console = Console(file=io.StringIO(), width=width, force_terminal=colour, color_system=system)
    show(document, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def a_table(*entries: Entry, settings: int = 1) -> Document:
    heads = [(f"m={m}", metric) for m in range(1, settings + 1) for metric in ("Average", "Worst Local")]
    columns = tuple(Column(setting, metric, entries) for setting, metric in heads)
    grid = Grid("shift", "Feature shift", tuple(f"Row {row}" for row in range(len(entries))), columns)
    return Document("Title", (), (), (Section("Shift", grids=(grid,)),))


def test_the_distinguishable_best_is_bold() -> None:
    text = printed(a_table(Entry("70.00", bold=True), Entry("60.00")), colour=True)
    assert re.search(r"\x1b\[1m *70\.00", text)
    assert not re.search(r"\x1b\[\d+m *60\.00", text)


def test_a_wide_table_is_continued_and_fits_a_hundred_columns() -> None:
    text = printed(a_table(Entry("65.00±7.07", "[66.00±7.07]"), settings=6))
    assert max(map(len, text.splitlines())) <= 100
    assert (text.count("65.00±7.07"), text.count("[66.00±7.07]")) == (12, 12)
    assert text.count("Feature shift (continued)") == 1


def test_a_sentence_below_its_table_is_not_repeated_in_the_summary() -> None:
    document = a_table(Entry("70.00"))
    grid = dataclasses.replace(document.sections[0].grids[0], notes=(Note("", "FedVPT gains."),))
    summary = Section("What the tables say", ("Feature shift, m=1: FedVPT gains.", "Too few settings for ranks."))
    text = printed(dataclasses.replace(document, sections=(summary, Section("Shift", grids=(grid,)))))
    assert text.count("FedVPT gains.") == 1
    assert text.count("Too few settings for ranks.") == 1


def test_what_cannot_be_compared_and_what_is_for_checking_is_left_to_the_files(tmp_path: Path) -> None:
    text = printed(a_document(tmp_path))
    assert "Ablation" in text
    assert "compared with the published values" not in text
    assert "Partitions" not in text


def test_warnings_come_last_where_they_are_seen(tmp_path: Path) -> None:
    lines = printed(a_document(tmp_path), width=300).splitlines()
    assert lines[-2].startswith("failed: head-tune, Feature shift, m=1, seed 0: a_b & 50% of <c> | #1")
    assert lines[-1].startswith("failed: head-tune, Feature shift, m=1, seed 1")
