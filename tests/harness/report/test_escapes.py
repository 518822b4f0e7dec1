"""Control characters and formulas in titles have no effect wherever they are shown."""

import csv
import dataclasses
import io
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console
from support.report_suites import a_setting, a_suite, report, run_all
from support.run_folders import a_cell, new_store

from fedprompt.harness.cli import main
from fedprompt.harness.report.document import Document, Section, made_visible
from fedprompt.harness.report.numbers import csv_text
from fedprompt.harness.report.writers import terminal
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.executors.attempt import failed
from fedprompt.harness.running.suite import Row
from fedprompt.methods import registry

NASTY = "=1+1 \x1b[2J\u202e<b>$x$|"


def test_a_title_is_written_out_in_every_format(tmp_path: Path) -> None:
    setting = a_setting(rows=(Row("head-tune", NASTY, "head-tune"),))
    suite, uri = dataclasses.replace(a_suite(), title=NASTY, settings=(setting,)), new_store(tmp_path)
    run_all(suite, uri, tmp_path)
    report(suite, uri, tmp_path)
    folder = tmp_path / "report" / suite.name
    for name in ("report.md", "index.html", "report.tex", "tables.csv", "cells.csv", "report.txt"):
        text = (folder / name).read_text()
        assert "\x1b[2J" not in text
        assert "\u202e" not in text
    assert "\\x1b" in (folder / "tables.csv").read_text()
    titles = {row["title"] for row in csv.DictReader(io.StringIO((folder / "tables.csv").read_text()))}
    assert all(title.startswith("'=1+1") for title in titles)


def test_the_terminal_gets_no_escapes() -> None:
    console = Console(file=io.StringIO(), width=80)
    terminal.show(made_visible(Document("t", (NASTY,), (("a", NASTY),), (Section("s", (NASTY,)),))), console)
    assert isinstance(console.file, io.StringIO)
    assert "\x1b[2J" not in console.file.getvalue()
    assert "\\x1b[2J" in console.file.getvalue()


@pytest.mark.parametrize("text", ["=1+1", "+1+1", "-cmd", "@SUM(A1)"])
def test_formulas_are_texts_in_csv(text: str) -> None:
    assert csv_text(pd.DataFrame({"a": [text], "b": [-1.5]})) == f"a,b\n'{text},-1.5\n"


def test_an_error_text_is_noted_without_escapes(tmp_path: Path) -> None:
    outcome = failed(a_cell(), RunEnvironment(tmp_path), "ValueError: \x1b[2Jall is well")
    assert outcome.error == "ValueError: \\x1b[2Jall is well"


def test_methods_shows_a_plugins_texts_without_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "escaping.py"
    file.write_text(
        '"""Doc \\x1b[2J [bold]."""\nfrom fedprompt.methods.fedvpt import FedVPT\n'
        "class Escaping(FedVPT):\n    name, title, order = 'escaping', 'T\\x1b[2J', 950\n"
    )
    assert main(["methods", "escaping", "--plugin", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "\x1b[2J" not in printed
    assert "T\\x1b[2J (escaping)" in printed
    assert registry().title("escaping") == "T\x1b[2J"
