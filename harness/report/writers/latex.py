"""The report as LaTeX with booktabs: `report.tex` stands alone, `tables/*.tex` can be put into a paper by \\input.

A paper needs the packages booktabs and, for its figures, graphicx.
"""

import re
from pathlib import Path

from fedprompt.core.files import write_atomic
from fedprompt.harness.report.document import Document, Entry, Grid, Note, Section

WIDTH = 104  # characters of a line in footnote size
PAGE = 60  # such lines on a page
FIT = r"width=\linewidth,height=.8\textheight,keepaspectratio"
PREAMBLE = r"""\documentclass[10pt,a4paper]{article}
\usepackage[utf8]{inputenc}
\usepackage[margin=2cm]{geometry}
\usepackage{booktabs,caption,graphicx,textcomp}
\usepackage[hidelinks]{hyperref}
\setlength{\parindent}{0pt}
\setlength{\parskip}{4pt}
\raggedbottom
\captionsetup{font=small,labelfont=bf,hypcap=false}
"""
SPECIAL = {
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "[": "{[}",  # not an argument of the line break before it
    "]": "{]}",
    "`": r"\textasciigrave{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "…": r"\dots{}",
    "†": r"\dag{}",
    "‡": r"\ddag{}",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
}


def write(document: Document, folder: Path) -> None:
    """Write `report.tex` and one file per table into ``folder``; tables of an earlier report are removed."""
    tables = folder / "tables"
    tables.mkdir(parents=True, exist_ok=True)
    for old in tables.glob("*.tex"):
        old.unlink()
    for section in document.printed:
        for grid in section.grids:
            write_atomic(tables / f"{grid.name}.tex", table(grid).encode())
    write_atomic(folder / "report.tex", render(document, folder).encode())


def render(document: Document, folder: Path) -> str:
    """`report.tex`; figures are named relative to ``folder``."""
    title = escape(document.title)
    lines = [PREAMBLE, f"\\title{{{title}}}", r"\author{}", r"\date{}", r"\begin{document}", r"\maketitle"]
    lines += [f"\\textbf{{{escape(line)}}}\\par" for line in document.alerts]
    lines += [r"\begin{description}"]
    lines += [f"\\item[{escape(name)}] {escape(value)}" for name, value in document.facts]
    lines += [r"\end{description}"]
    for section in document.printed:
        lines += _section(section, folder)
    return "\n".join([*lines, r"\end{document}", ""])


def _section(section: Section, folder: Path) -> list[str]:
    # A box keeps the caption with its table; a table that may be too tall for a box begins a page.
    tall = [_lines(grid) > PAGE for grid in section.grids]
    lines = ["", r"\clearpage" if tall[:1] == [True] else "", f"\\section*{{{escape(section.title)}}}"]
    lines += [f"{escape(line)}\\par" for line in section.text]
    for number, grid in enumerate(section.grids):
        lines += [r"\clearpage"] if number and tall[number] else []
        begin, end = ("{", "}") if tall[number] else (r"\begin{minipage}{\linewidth}", r"\end{minipage}")
        lines += [
            f"{begin}\\centering",
            f"\\captionof{{table}}{{{escape(grid.title)}}}\\label{{tab:{grid.name}}}",
            f"\\input{{tables/{grid.name}}}",
            f"\\par{end}\\par\\medskip",
        ]
    for figure in section.figures:
        lines += [
            r"\begin{center}",
            f"\\includegraphics[{FIT}]{{{_link(figure.pdf, folder)}}}",
            f"\\captionof{{figure}}{{{escape(figure.caption)}}}\\label{{fig:{figure.name}}}",
            r"\end{center}",
        ]
    return lines


def _lines(grid: Grid) -> int:
    """Roughly how many lines a table takes."""
    below = sum(any(column.entries[row].below for column in grid.columns) for row in range(len(grid.rows)))
    text = sum(1 + len(note.text) // WIDTH for note in grid.notes) + len(grid.caution) // WIDTH
    return len(grid.parts(WIDTH)) * (len(grid.rows) + below + 4) + text + 3


def _link(path: Path, folder: Path) -> str:
    return path.relative_to(folder).as_posix()


def table(grid: Grid) -> str:
    """A table without its caption: tabulars that fit a page, one below the other, then the notes."""
    lines = [r"{\footnotesize\setlength{\tabcolsep}{3.5pt}"]
    lines += [f"\\textbf{{{escape(grid.caution)}}}\\par\\smallskip"] if grid.caution else []
    lines.append("\n\\par\\medskip\n".join(_tabular(part) for part in grid.parts(WIDTH)))
    lines += [f"\\par\\smallskip\\raggedright {_note(note)}" for note in grid.notes]
    return "\n".join([*lines, r"\par}", ""])


def _note(note: Note) -> str:
    return (f"\\textsuperscript{{{escape(note.mark)}}}" if note.mark else "") + escape(note.text)


def _tabular(grid: Grid) -> str:
    """Settings above metrics."""
    lines = [f"\\begin{{tabular}}{{l{'r' * len(grid.columns)}}}", r"\toprule"]
    if any(setting for setting, _ in grid.groups):
        lines += _group_heads(grid)
    heads = [grid.corner, *(column.metric or column.setting for column in grid.columns)]
    lines += [_row([escape(head) for head in heads]), r"\midrule"]
    for number, name in enumerate(grid.rows):
        entries = [column.entries[number] for column in grid.columns]
        lines.append(_row([escape(name), *map(_entry, entries)]))
        if any(entry.below for entry in entries):
            lines.append(_row(["", *(escape(entry.below) for entry in entries)]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _group_heads(grid: Grid) -> list[str]:
    heads, rules, place = [""], [], 2
    for setting, columns in grid.groups:
        last = place + len(columns) - 1
        above = setting if any(column.metric for column in columns) else ""
        heads.append(f"\\multicolumn{{{len(columns)}}}{{c}}{{{escape(above)}}}")
        rules += [f"\\cmidrule(lr){{{place}-{last}}}"] if above else []
        place = last + 1
    return [_row(heads), " ".join(rules)]


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _entry(entry: Entry) -> str:
    text = escape(entry.text)
    text = f"\\textbf{{{text}}}" if entry.bold else text
    return text + (f"\\textsuperscript{{{escape(entry.marks)}}}" if entry.marks else "")


def escape(text: str) -> str:
    """Text in which no character is a command; a character that the font lacks becomes a question mark."""
    escaped = "".join(SPECIAL.get(char, char) for char in " ".join(text.split()))
    return re.sub(r"[^\x20-\x7e\xa0-\xff]", "?", escaped)
