"""A report in no particular format: what the terminal, Markdown, LaTeX and HTML all print."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from fedprompt.core.text import visible

Part = TypeVar("Part", bound=Any)

MISSING = "–"
FAILED, DIVERGED = "failed", "diverged"
UNTUNED = "‡"  # marks numbers whose rates were not tuned, while those of others were
GAP = 2  # characters between two columns of text


@dataclass(frozen=True)
class Entry:
    """One cell of a table."""

    text: str
    below: str = ""  # its second line
    bold: bool = False  # the best of its column, and distinguishable from the second
    marks: str = ""  # signs of the notes that belong to it
    link: str = ""  # from the report's folder

    @property
    def width(self) -> int:
        """In characters."""
        return max(len(self.text) + len(self.marks), len(self.below))


@dataclass(frozen=True)
class Column:
    """What stands below one heading; columns of the same setting stand together."""

    setting: str
    metric: str
    entries: tuple[Entry, ...]

    @property
    def heading(self) -> list[str]:
        """The setting in lines, cut at commas."""
        return self.setting.replace(", ", ",\n").split("\n")

    @property
    def width(self) -> int:
        """In characters, of the heading or the widest entry."""
        return max(*map(len, [*self.heading, self.metric]), *(entry.width for entry in self.entries))


class Note(NamedTuple):
    """A footnote of a table."""

    mark: str  # a sign that entries carry; empty where it is about the whole table
    text: str


@dataclass(frozen=True)
class Grid:
    """A table."""

    name: str  # of its file
    title: str
    rows: tuple[str, ...]
    columns: tuple[Column, ...]
    corner: str = "Method"
    caution: str = ""  # stands above the table, for readers who see only this table
    aside: bool = False  # not printed in the terminal
    notes: tuple[Note, ...] = ()

    @property
    def groups(self) -> list[tuple[str, list[Column]]]:
        """Columns by the setting above them."""
        return [(setting, list(columns)) for setting, columns in groupby(self.columns, lambda c: c.setting)]

    def parts(self, width: int) -> list["Grid"]:
        """As few tables of at most ``width`` characters as possible, evenly filled; settings stay whole if they fit."""
        room = width - max(len(self.corner), *map(len, self.rows))
        cut = _cut(self._unsplit(), room) or _cut([[column] for column in self.columns], room)
        return [replace(self, columns=tuple(part)) for part in cut or [[column] for column in self.columns]]

    def _unsplit(self) -> list[list[Column]]:
        """Columns that stay together: those of a setting, with any that follow without a metric."""
        blocks: list[list[Column]] = []
        for setting, columns in self.groups:
            if blocks and not any(column.metric for column in columns):
                blocks[-1] += columns
            else:
                blocks += [columns] if setting else [[column] for column in columns]
        return blocks


@dataclass(frozen=True)
class WrittenFigure:
    """A figure and its files."""

    name: str
    title: str
    caption: str
    png: Path
    pdf: Path


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it: text, tables, figures."""

    title: str
    text: tuple[str, ...] = ()
    grids: tuple[Grid, ...] = ()
    figures: tuple[WrittenFigure, ...] = ()
    page_only: bool = False  # links, which print cannot follow
    folded: bool = False  # for readers who check details: closed on the page, not printed in the terminal


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    alerts: tuple[str, ...]  # what could mislead, before everything else
    facts: tuple[tuple[str, str], ...]  # what was run, in a few words
    sections: tuple[Section, ...]

    @property
    def printed(self) -> tuple[Section, ...]:
        """The sections that Markdown and LaTeX have."""
        return tuple(section for section in self.sections if not section.page_only)


def made_visible(part: Part) -> Part:
    """``part`` of a document with control characters in its texts written out, whoever they came from."""
    if isinstance(part, str):
        return cast(Part, visible(part, keep="\n"))
    if isinstance(part, tuple):
        values = map(made_visible, part)
        return part._make(values) if hasattr(part, "_make") else type(part)(values)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{field.name: made_visible(getattr(part, field.name)) for field in fields(part)})
    return part


def _cut(groups: Sequence[list[Column]], room: int) -> list[list[Column]]:
    """The groups in as few rows as fit ``room``; empty where a single group does not fit."""
    for count in range(1, len(groups) + 1):
        size = -(-len(groups) // count)
        rows = [list(chain(*groups[start : start + size])) for start in range(0, len(groups), size)]
        if max(sum(column.width + GAP for column in row) for row in rows) <= room:
            return rows
    return []
