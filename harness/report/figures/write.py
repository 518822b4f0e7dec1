"""Every figure of a report, as PNG for pages and as PDF for print. A figure without data is left out."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd

from fedprompt.datasets import load_dataset
from fedprompt.harness.report.collect import POLICY_HEADINGS, Recorded
from fedprompt.harness.report.document import WrittenFigure
from fedprompt.harness.report.figures.clients import LoadDataset, figures_partition, figures_spread
from fedprompt.harness.report.figures.cost import Counted, figures_cost
from fedprompt.harness.report.figures.curves import figures_rounds, figures_vsweep
from fedprompt.harness.report.figures.gains import figures_gains
from fedprompt.harness.report.figures.ranks import figures_ranks
from fedprompt.harness.report.figures.style import DrawnFigure, print_style, save_figure
from fedprompt.harness.report.figures.tuning import figures_tuning
from fedprompt.harness.report.findings import ranks_by_policy
from fedprompt.harness.report.numbers import Number


def write_figures(
    recorded: Recorded,
    numbers: Sequence[Number],
    folder: Path,
    tuning: pd.DataFrame | None = None,
) -> list[WrittenFigure]:
    """Draw what was recorded into ``folder``; ``tuning`` is of `tuning_frame`."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = []
    with print_style():
        for drawn in _draw(recorded, numbers, tuning):
            figures.append(WrittenFigure(drawn.name, drawn.title, drawn.caption, *save_figure(drawn, folder)))
    return figures


def _draw(recorded: Recorded, numbers: Sequence[Number], tuning: pd.DataFrame | None) -> Iterator[DrawnFigure]:
    """Gains in one figure; of the other results, one figure of each kind and head policy."""

    load = cache(load_dataset)
    yield from figures_gains(recorded.suite, numbers)
    policies, counted = list(recorded.results["policy"].unique()), Counted()
    for policy in policies:
        figures = _results(recorded.under(policy), [n for n in numbers if n.policy == policy], load, counted)
        yield from figures if len(policies) == 1 else (_named(figure, policy) for figure in figures)
    yield from figures_partition(recorded.suite, recorded.records, load)
    if tuning is not None:
        yield from figures_tuning(tuning)


def _results(
    recorded: Recorded, numbers: Sequence[Number], load: LoadDataset, counted: Counted
) -> Iterator[DrawnFigure]:
    yield from figures_rounds(recorded.suite, recorded.records, numbers)
    yield from figures_cost(recorded, load, counted)
    yield from figures_vsweep(recorded.suite, recorded.results, numbers)
    yield from figures_spread(recorded.suite, recorded.records)
    for ranks in ranks_by_policy(numbers).values():
        yield from figures_ranks(ranks)


def _named(figure: DrawnFigure, policy: str) -> DrawnFigure:
    heading = POLICY_HEADINGS[policy]
    return replace(figure, name=f"{figure.name}-{policy.replace('_', '-')}", title=f"{figure.title} ({heading})")
