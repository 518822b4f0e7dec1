"""The report as GitHub's Markdown."""

import re
from pathlib import Path

from fedprompt.harness.report.document import Document, Entry, Grid, Section


def render(document: Document, folder: Path) -> str:
    """The text; figures are linked relative to ``folder``."""
    blocks = [f"# {_escaped(document.title)}"]
    blocks += ["\n".join(f"> **{_escaped(line)}**  " for line in document.alerts)] if document.alerts else []
    blocks.append("\n".join(f"- {name}: {_escaped(value)}" for name, value in document.facts))
    for section in document.printed:
        blocks += _section(section, folder)
    return "\n\n".join(blocks) + "\n"


def _section(section: Section, folder: Path) -> list[str]:
    blocks = [f"## {_escaped(section.title)}"]
    if section.text:
        blocks.append("\n".join(f"- {_escaped(line)}" for line in section.text))
    for grid in section.grids:
        blocks += [f"### {_escaped(grid.title)}"] if grid.title != section.title else []
        blocks += [f"**{_escaped(grid.caution)}**"] if grid.caution else []
        blocks.append(table(grid))
        if grid.notes:
            blocks.append("\n".join(f"- {_sup(note.mark)}{_escaped(note.text)}" for note in grid.notes))
    for figure in section.figures:
        link = figure.png.relative_to(folder).as_posix()
        title = _escaped(figure.title)
        blocks += [f"### {title}", f"![{title}]({link})", _escaped(figure.caption)]
    return blocks


def table(grid: Grid) -> str:
    """A table in GitHub's Markdown, without its title and notes."""
    header = [grid.corner, *("<br>".join(_escaped(t) for t in (c.setting, c.metric) if t) for c in grid.columns)]
    rows = [
        [_escaped(name), *(_marked(column.entries[row]) for column in grid.columns)]
        for row, name in enumerate(grid.rows)
    ]
    lines = [header, ["---", *["---:"] * len(grid.columns)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _marked(entry: Entry) -> str:
    stars = "**" if entry.bold else ""
    below = f"<br>{_escaped(entry.below)}" if entry.below else ""
    return f"{stars}{_escaped(entry.text)}{stars}{_sup(entry.marks)}{below}"


def _sup(marks: str) -> str:
    return f"<sup>{marks}</sup>" if marks else ""


def _escaped(text: str) -> str:
    """Text in which no character is markup, whether ours or an error message's."""
    return re.sub(r"([\\`*_<>|~]|\](?=\())", r"\\\1", " ".join(text.split()))
