"""Every figure of a report, as PNG for pages and as PDF for print. A figure without data is left out."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from fedprompt.datasets import Dataset, load_dataset
from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.report.figures.clients import figures_partition, figures_spread
from fedprompt.harness.report.figures.cost import figures_cost
from fedprompt.harness.report.figures.curves import figures_rounds, figures_vsweep
from fedprompt.harness.report.figures.style import Picture, print_style, save
from fedprompt.harness.report.figures.tuning import figures_tuning


@dataclass(frozen=True)
class Figure:
    """A written figure; ``name`` is that of its files, without the ending."""

    name: str
    title: str
    caption: str
    png: Path
    pdf: Path


def write_figures(
    suite: Suite,
    results: pd.DataFrame,
    records: pd.DataFrame,
    rounds: pd.DataFrame,
    folder: Path,
    tuning: pd.DataFrame | None = None,
    data_root: Path | None = None,
) -> list[Figure]:
    """Draw what the frames (of `collect`, `load_records`, `load_rounds` and `tuning_frame`) have into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = []
    with print_style():
        for picture in _pictures(suite, results, records, rounds, tuning, data_root):
            figures.append(Figure(picture.name, picture.title, picture.caption, *save(picture, folder)))
    return figures


def _pictures(
    suite: Suite,
    results: pd.DataFrame,
    records: pd.DataFrame,
    rounds: pd.DataFrame,
    tuning: pd.DataFrame | None,
    data_root: Path | None,
) -> Iterator[Picture]:
    @cache
    def load(name: str) -> Dataset:
        return load_dataset(name, root=data_root)

    yield from figures_rounds(suite, records, rounds)
    yield from figures_cost(suite, results, rounds, load)
    yield from figures_vsweep(suite, results)
    yield from figures_spread(suite, records)
    yield from figures_partition(suite, records, load)
    if tuning is not None:
        yield from figures_tuning(tuning)
