"""It compiles where LaTeX is; elsewhere its structure is looked at."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.report_suites import a_document

from fedprompt.harness.report.document import Column, Entry, Grid, Note
from fedprompt.harness.report.writers.latex import escape, table, write

GRID = Grid(
    "shift",
    "Shift",
    ("A_1", "B"),
    (
        Column("m=1", "Average", (Entry("70.00±0.10", "[71.00]", bold=True), Entry("60.00", marks="†↑"))),
        Column("m=1", "Worst Local", (Entry("–"), Entry("failed", marks="a"))),
        Column("Sent", "", (Entry("200 B"), Entry("2.0 kB"))),
    ),
    caution="Not comparable",
    notes=(Note("a", "50 % doubtful"),),
)


def test_a_table() -> None:
    assert table(GRID).splitlines() == [
        r"{\footnotesize\setlength{\tabcolsep}{3.5pt}",
        r"\textbf{Not comparable}\par\smallskip",
        r"\begin{tabular}{lrrr}",
        r"\toprule",
        r" & \multicolumn{2}{c}{m=1} & \multicolumn{1}{c}{} \\",
        r"\cmidrule(lr){2-3}",
        r"Method & Average & Worst Local & Sent \\",
        r"\midrule",
        r"A\_1 & \textbf{70.00$\pm$0.10} & -- & 200 B \\",
        r" & {[}71.00{]} &  &  \\",
        r"B & 60.00\textsuperscript{\dag{}$\uparrow$} & failed\textsuperscript{a} & 2.0 kB \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip\raggedright \textsuperscript{a}50 \% doubtful",
        r"\par}",
    ]


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & 50% #1 {x} $y", r"a\_b \& 50\% \#1 \{x\} \$y"),
        ("\\ ~ ^", r"\textbackslash{} \textasciitilde{} \textasciicircum{}"),
        ("< > |", r"\textless{} \textgreater{} \textbar{}"),
        ("−1 ± 2 – 3", r"$-$1 $\pm$ 2 -- 3"),
        ('[a] "b" `c`', r"{[}a{]} ''b'' \textasciigrave{}c\textasciigrave{}"),
        ("two\nlines", "two lines"),
        ("ψ é", "? é"),
    ],
)
def test_nothing_in_a_text_is_a_command(text: str, escaped: str) -> None:
    assert escape(text) == escaped


def test_environments_are_balanced_and_rows_complete(tmp_path: Path) -> None:
    write(a_document(tmp_path), tmp_path)
    files = [tmp_path / "report.tex", *(tmp_path / "tables").glob("*.tex")]
    assert len(files) == 9
    for file in files:
        text = file.read_text()
        begun, ended = (sorted(re.findall(rf"\\{word}\{{(\w+)", text)) for word in ("begin", "end"))
        assert begun == ended
        assert begun.count("tabular") == 0 if file.name == "report.tex" else begun.count("tabular") > 0
        assert text.replace(r"\{", "").count("{") == text.replace(r"\}", "").count("}")
        for columns, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL):
            for row in re.findall(r"^(.*) \\\\$", body, re.MULTILINE):
                spans = [int(span) - 1 for span in re.findall(r"\\multicolumn\{(\d+)\}", row)]
                assert len(re.findall(r"(?<!\\)&", row)) + 1 + sum(spans) == len(columns)


def test_report_includes_every_table_and_figure(tmp_path: Path) -> None:
    write(a_document(tmp_path), tmp_path)
    text = (tmp_path / "report.tex").read_text()
    names = {f"tables/{file.stem}" for file in (tmp_path / "tables").glob("*.tex")}
    assert set(re.findall(r"\\input\{(.*?)\}", text)) == names
    assert r"keepaspectratio]{figures/dot.pdf}" in text


def test_tables_of_an_earlier_report_go(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "old.tex").write_text("")
    write(a_document(tmp_path), tmp_path)
    assert not (tmp_path / "tables" / "old.tex").exists()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_it_compiles(tmp_path: Path) -> None:
    write(a_document(tmp_path), tmp_path)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull \\hbox" not in done.stdout
