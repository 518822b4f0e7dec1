"""The report as one page that needs nothing else: no network, no script; light, dark, narrow or on paper."""

import base64
import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from fedprompt.harness.report.document import FAILED, MISSING, Document, Entry, Grid, Section
from fedprompt.harness.report.figures.style import PNG_DPI
from fedprompt.harness.report.tables import unique

if TYPE_CHECKING:
    from fedprompt.harness.report.figures.write import Figure

PIXELS_PER_INCH = 144  # of a figure: one and a half times its size in print, so that its text is as large as ours
STYLE = Path(__file__).with_name("page.css")


def render(document: Document) -> str:
    anchors = unique(_anchor(section.title) for section in document.sections)
    sections = list(zip(anchors, document.sections, strict=True))
    alerts = "".join(f"<p>{escape(line)}</p>" for line in document.alerts)
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in document.facts)
    contents = "".join(f'<li><a href="#{anchor}">{escape(s.title)}</a></li>' for anchor, s in sections)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(document.title)}</title>",
            f"<style>\n{STYLE.read_text()}</style>",
            "</head>",
            "<body>",
            f"<header><h1>{escape(document.title)}</h1>",
            f'<div class="alerts" role="note">{alerts}</div>' if alerts else "",
            f"<dl>{facts}</dl></header>",
            f'<nav aria-label="Contents"><ol>{contents}</ol></nav>',
            "<main>",
            *(_section(anchor, section) for anchor, section in sections),
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _section(anchor: str, section: Section) -> str:
    inside = "\n".join(
        [
            *(f"<p>{escape(line)}</p>" for line in section.text),
            *(_grid(grid, heading=grid.title != section.title) for grid in section.grids),
            *map(_figure, section.figures),
        ]
    )
    title = escape(section.title)
    if section.folded:
        return f'<section id="{anchor}"><details><summary><h2>{title}</h2></summary>\n{inside}\n</details></section>'
    return f'<section id="{anchor}"><h2>{title}</h2>\n{inside}\n</section>'


def _grid(grid: Grid, heading: bool) -> str:
    notes = "".join(f"<li>{_sup(note.mark)}{escape(note.text)}</li>" for note in grid.notes)
    return "\n".join(
        filter(
            None,
            [
                f"<h3>{escape(grid.title)}</h3>" if heading else "",
                f'<p class="caution">{escape(grid.caution)}</p>' if grid.caution else "",
                # Focusable, so that the arrow keys scroll a table that is wider than the page.
                f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(grid.title)}"><table>',
                *_head(grid),
                "<tbody>",
                *(_row(grid, number) for number in range(len(grid.rows))),
                "</tbody></table></div>",
                f'<ul class="notes">{notes}</ul>' if notes else "",
            ],
        )
    )


def _head(grid: Grid) -> list[str]:
    """Two lines of headings where settings have names; a column without a metric spans both."""
    corner = escape(grid.corner)
    if not any(setting for setting, _ in grid.groups):
        heads = "".join(f'<th scope="col">{escape(column.metric)}</th>' for column in grid.columns)
        return [f'<thead><tr><th scope="col">{corner}</th>{heads}</tr></thead>']
    top = [f'<th scope="col" rowspan="2">{corner}</th>']
    below = []
    for setting, columns in grid.groups:
        if [column.metric for column in columns] == [""]:
            top.append(f'<th scope="col" rowspan="2" class="first">{escape(setting)}</th>')
        else:
            top.append(f'<th scope="colgroup" colspan="{len(columns)}" class="first group">{escape(setting)}</th>')
            below += [
                f'<th scope="col"{_first(place)}>{escape(column.metric)}</th>' for place, column in enumerate(columns)
            ]
    return ["<thead>", f"<tr>{''.join(top)}</tr>", f"<tr>{''.join(below)}</tr>", "</thead>"]


def _row(grid: Grid, number: int) -> str:
    cells = [
        f"<td{_first(place)}>{_entry(column.entries[number])}</td>"
        for _, columns in grid.groups
        for place, column in enumerate(columns)
    ]
    return f'<tr><th scope="row">{escape(grid.rows[number])}</th>{"".join(cells)}</tr>'


def _first(place: int) -> str:
    """Where a setting's columns begin there is some air."""
    return "" if place else ' class="first"'


def _entry(entry: Entry) -> str:
    if entry.text in (FAILED, MISSING):
        return f'<span class="{"failed" if entry.text == FAILED else "missing"}">{escape(entry.text)}</span>'
    mean, plus_minus, spread = escape(entry.text).partition("±")
    mean = {1: f"<strong>{mean}</strong>", 2: f"<u>{mean}</u>"}.get(entry.rank, mean)
    spread = f'<span class="spread">{plus_minus}{spread}</span>' if plus_minus else ""
    below = f'<br><span class="spread">{escape(entry.below)}</span>' if entry.below else ""
    return mean + spread + _sup(entry.marks) + below


def _sup(marks: str) -> str:
    return f"<sup>{escape(marks)}</sup>" if marks else ""


def _figure(figure: "Figure") -> str:
    content = figure.png.read_bytes()
    data = base64.b64encode(content).decode()
    width = round(int.from_bytes(content[16:20], "big") / PNG_DPI * PIXELS_PER_INCH)  # bytes of a PNG's header
    title = escape(figure.title)
    return (
        f'<figure id="figure-{_anchor(figure.name)}"><h3>{title}</h3>'
        f'<img alt="{title}" width="{width}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
    )


def _anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "section"
