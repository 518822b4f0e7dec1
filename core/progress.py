"""Progress bars on standard error, for people only: nothing is drawn when it is not a terminal."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from time import monotonic
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from fedprompt.core.text import visible

T = TypeVar("T")


class DescriptionColumn(ProgressColumn):
    """What a task is about, as plain text: brackets and escape sequences in a name have no effect."""

    def render(self, task: Task) -> Text:
        """The description with control characters written out."""
        return Text(visible(task.description))


class LeftColumn(TimeRemainingColumn):
    """The remaining time, counted down to the moment that a task names as ``until``; otherwise rich's own estimate."""

    max_refresh = 0.0

    def render(self, task: Task) -> Text:
        """`0:01:30`, or dashes while the moment is unknown."""
        if "until" not in task.fields:
            return super().render(task)
        until = task.fields["until"]
        left = "-:--:--" if until is None else str(timedelta(seconds=max(0, round(until - monotonic()))))
        return Text(left, style="progress.remaining")


def progress(*columns: ProgressColumn) -> Progress:
    """Bars to be used as a context manager. ``columns`` replace the usual counts and times.

    Tasks are added as in rich, ``bar.add_task(description, total=n)``. A task may name the moment that it will end as
    ``until=monotonic() + seconds`` (or None while that is unknown).
    """
    usual = (MofNCompleteColumn(), TimeElapsedColumn(), LeftColumn())
    return Progress(
        DescriptionColumn(table_column=Column(no_wrap=True, overflow="ellipsis", max_width=34)),
        BarColumn(14),  # so that counts and times fit 80 columns
        *(columns or usual),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


def track(items: Sequence[T] | Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate over ``items`` with a bar; ``total`` is their number where they have no length."""
    with progress() as bar:
        count = total if total is not None else len(items) if isinstance(items, Sequence) else None
        yield from bar.track(items, total=count, description=description)
