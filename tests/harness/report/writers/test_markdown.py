import re
from pathlib import Path

from support.report_suites import a_document, row_of

from fedprompt.harness.report.document import Column, Entry, Grid
from fedprompt.harness.report.writers.markdown import render, table


def test_the_distinguishable_best_is_bold() -> None:
    entries = (Entry("70.00±0.10", "[71.00±0.20]", bold=True), Entry("60.00"), Entry("50.00", marks="ab"))
    text = table(Grid("g", "G", ("A", "B", "C"), (Column("m=1", "Average", entries),)))
    assert text.splitlines() == [
        "| Method | m=1<br>Average |",
        "| --- | ---: |",
        "| A | **70.00±0.10**<br>[71.00±0.20] |",
        "| B | 60.00 |",
        "| C | 50.00<sup>ab</sup> |",
    ]


def test_every_row_of_a_table_has_as_many_columns(tmp_path: Path) -> None:
    text = render(a_document(tmp_path), tmp_path)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert len(tables) == 8  # four of ours, three with published values (two metrics, unseen), one of partitions
    for each in tables:
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in each.splitlines()}
        assert len(columns) == 1


def test_failed_and_missing_are_shown(tmp_path: Path) -> None:
    text = render(a_document(tmp_path), tmp_path)
    assert row_of(text, "No prompt")[1] == "failed"
    assert row_of(text, "FedPR-S")[1] == "53.00 (1/2)"


def test_text_is_no_markup(tmp_path: Path) -> None:
    text = render(a_document(tmp_path), tmp_path)
    assert r"a\_b & 50% of \<c\> \| #1 {x} \~ ^ \\ $y [z\](u) \*w\* \`v\`" in text


def test_figures_are_linked_from_the_folder(tmp_path: Path) -> None:
    assert "![A dot & more](figures/dot.png)" in render(a_document(tmp_path), tmp_path)


def test_notes_carry_their_mark(tmp_path: Path) -> None:
    text = render(a_document(tmp_path), tmp_path)
    assert "- <sup>a</sup>The paper prints the better of FedPR's" in text
