"""Progress bars on standard error, for people only: nothing is drawn when it is not a terminal."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

T = TypeVar("T")


def progress(*columns: ProgressColumn) -> Progress:
    """Bars to be used as a context manager. ``columns`` replace the usual counts and times."""
    usual = (MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *(columns or usual),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )


def track(items: Sequence[T] | Iterable[T], description: str, total: int | None = None) -> Iterator[T]:
    """Iterate with a bar."""
    with progress() as bar:
        count = total if total is not None else len(items) if isinstance(items, Sequence) else None
        yield from bar.track(items, total=count, description=description)
