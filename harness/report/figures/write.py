"""Every figure of a report, as PNG for pages and as PDF for print. A figure without data is left out."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from fedprompt.datasets import Dataset, load_dataset
from fedprompt.harness.report.collect import Recorded
from fedprompt.harness.report.figures.clients import figures_partition, figures_spread
from fedprompt.harness.report.figures.cost import figures_cost
from fedprompt.harness.report.figures.curves import figures_rounds, figures_vsweep
from fedprompt.harness.report.figures.style import DrawnFigure, print_style, save
from fedprompt.harness.report.figures.tuning import figures_tuning


@dataclass(frozen=True)
class WrittenFigure:
    """A figure and its files."""

    name: str
    title: str
    caption: str
    png: Path
    pdf: Path


def write_figures(
    recorded: Recorded,
    summary: pd.DataFrame,
    folder: Path,
    tuning: pd.DataFrame | None = None,
    data_root: Path | None = None,
) -> list[WrittenFigure]:
    """Draw what was recorded into ``folder``; ``summary`` holds the printed values, ``tuning`` is of `tuning_frame`."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = []
    with print_style():
        for drawn in _draw(recorded, summary, tuning, data_root):
            figures.append(WrittenFigure(drawn.name, drawn.title, drawn.caption, *save(drawn, folder)))
    return figures


def _draw(
    recorded: Recorded, summary: pd.DataFrame, tuning: pd.DataFrame | None, data_root: Path | None
) -> Iterator[DrawnFigure]:
    suite, results, records, rounds = recorded.suite, recorded.results, recorded.records, recorded.rounds

    @cache
    def load(name: str) -> Dataset:
        return load_dataset(name, root=data_root)

    yield from figures_rounds(suite, records, rounds)
    yield from figures_cost(recorded, load)
    yield from figures_vsweep(suite, results, summary)
    yield from figures_spread(suite, records)
    yield from figures_partition(suite, records, load)
    if tuning is not None:
        yield from figures_tuning(tuning)
