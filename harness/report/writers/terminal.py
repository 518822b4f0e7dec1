"""The tables in the terminal."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedprompt.harness.report.document import GAP, Document, Entry, Grid


def show(document: Document, console: Console) -> None:
    """Print with rich; a table wider than the terminal is continued below itself.

    Folded sections and tables that cannot be compared are left to the files.
    """
    sections = [section for section in document.sections if not section.folded]
    grids = [grid for section in sections for grid in section.grids if not grid.aside]
    below_tables = tuple(note.text for grid in grids for note in grid.notes)
    for section in sections:
        for grid in section.grids:
            if not grid.aside:
                _print(grid, console)
        for line in section.text:
            if not line.endswith(below_tables):  # a summary of sentences that stand below their tables
                console.print(Text(line, style="dim"))
    for name, value in document.facts:
        console.print(Text(f"{name}: {value}", style="dim"))
    for line in document.alerts:
        console.print(Text(line, style="bold red"))


def _print(grid: Grid, console: Console) -> None:
    for number, part in enumerate(grid.parts(console.width - 1)):  # 1 for the left edge
        title = grid.title + (" (continued)" if number else "")
        table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0))
        table.add_column(grid.corner, no_wrap=True)
        lines = max(len(column.heading) for column in part.columns)
        for column in part.columns:
            padding = [""] * (lines - len(column.heading))  # so that metrics stand on one line
            head = Text("\n".join([*column.heading, *padding, column.metric]).lstrip(), justify="right")
            table.add_column(head, justify="right", no_wrap=True)
        for row, name in enumerate(part.rows):
            table.add_row(Text(name), *(_styled(column.entries[row]) for column in part.columns))
        console.print(table)
    for note in grid.notes:
        console.print(Text(f"{note.mark}  {note.text}".strip(), style="dim"))


def _styled(entry: Entry) -> Text:
    text = Text(entry.text, style="bold" if entry.bold else "")
    text.append(entry.marks, style="dim not bold")
    return text.append(f"\n{entry.below}", style="not bold") if entry.below else text
