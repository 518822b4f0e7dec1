"""Figures of clients: how far their accuracies spread, and who has what."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedprompt.core.errors import UserError
from fedprompt.datasets import Dataset, Partition, heat_map, make_partition, parse_partition, train_counts
from fedprompt.harness.report.figures.curves import figure_parts, main_settings, setting_name, titles_shown
from fedprompt.harness.report.figures.style import DrawnFigure, label_y, looks, panels
from fedprompt.harness.report.tables import slug
from fedprompt.harness.report.values import client_values, protocol_of
from fedprompt.harness.running.suite import Setting, Suite

LoadDataset = Callable[[str], Dataset]  # by name; a UserError where the data are not at hand
NAMED = 12  # more classes or domains than this are numbered, of more clients every other one is ticked
TICKED = 25  # more clients than this are ticked as numbers are
WRITTEN = 64  # cells of a heat map that carry their number, at most


def figures_spread(suite: Suite, records: pd.DataFrame) -> Iterator[DrawnFigure]:
    """One dot per client and seed, with their quartiles; one line per method and one panel per setting."""
    for part in figure_parts(suite, client_values(suite.settings, main_settings(records))):
        caption = (
            "Accuracies of the clients, mean over the reported rounds: one dot per client and seed; box: "
            "quartiles over them, bar: median, diamond: mean."
        )
        title = f"Spread of accuracy over clients{part.about}"
        yield DrawnFigure(f"client-spread{part.suffix}", title, caption, _spread(suite, part.frame))


def _spread(suite: Suite, clients: pd.DataFrame) -> Figure:
    columns, row_looks = sorted(clients["column"].unique()), looks(suite.rows)
    titles = titles_shown(suite, clients)
    places = {key: place for place, key in enumerate(titles)}
    figure, axes = panels(len(columns), height=0.55 + 0.155 * len(titles), sharey=True)
    for ax, column in zip(axes, columns, strict=True):
        for key, row in clients[clients["column"] == column].groupby("row", sort=False):
            _line_of_clients(ax, 100 * row["value"].to_numpy(), places[str(key)], row_looks[str(key)].colour)
        ax.set_yticks(list(places.values()), list(titles.values()))
        ax.set_ylim(len(titles) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
        ax.set(title=setting_name(suite.settings[column]), xlabel="accuracy of a client (%)")
    return figure


def _line_of_clients(ax: Axes, values: np.ndarray, y: float, colour: str) -> None:
    # Dots are spread by their number, not by chance, so that equal data give equal figures.
    lift = 0.26 * np.sin(2.4 * np.arange(len(values)))
    low, middle, high = np.percentile(values, [25, 50, 75])
    ax.plot(values, y + lift, ".", color=colour, markersize=2.2, alpha=0.75 if len(values) <= 60 else 0.3)
    ax.barh(y, high - low, 0.62, low, facecolor=colour, alpha=0.25, zorder=2)
    ax.plot([middle, middle], [y - 0.31, y + 0.31], color=colour, linewidth=1.4)
    ax.plot(values.mean(), y, "D", color="white", markeredgecolor="black", markersize=3, markeredgewidth=0.7)


def figures_partition(suite: Suite, records: pd.DataFrame, load: LoadDataset) -> Iterator[DrawnFigure]:
    """Train images of each client by domain or class, of one seed: one figure per data set, one panel per partition."""
    if records.empty:
        return
    seed = next(seed for seed in suite.seeds if (records["seed"] == seed).any())
    recorded = records[records["seed"] == seed].groupby("column")["partition"].first()
    datasets: dict[str, dict[str, int]] = {}  # by name: the first column of each of its partitions
    for column in sorted(recorded.index):
        setting = suite.settings[column]
        datasets.setdefault(setting.dataset, {}).setdefault(str(parse_partition(setting.partition)), column)
    for name, columns in datasets.items():
        try:
            dataset = load(name)
            holdings = [
                _holdings(suite.settings[column], dataset, seed, recorded[column]) for column in columns.values()
            ]
        except UserError as error:
            print(f"note: no picture of who has what in {name}: {error}", file=sys.stderr)
        else:
            yield _who_has_what(dataset, holdings, f"seed {seed}")


class Holdings(NamedTuple):
    """How many train images of each domain or class the clients of one partition have."""

    setting: Setting
    partition: Partition
    what: str  # `domain` or `class`
    names: tuple[str, ...]  # of domains or classes
    counts: np.ndarray  # train images, clients x names


def _holdings(setting: Setting, dataset: Dataset, seed: int, recorded: str) -> Holdings:
    """The partition, made again from the data; it must be the recorded one."""
    spec = parse_partition(setting.partition)
    partition = make_partition(spec, dataset, seed, protocol_of(setting).val_fraction)
    if not partition.hash.startswith(recorded):
        raise UserError(f"the data here give another partition ({partition.hash[:16]}) than the recorded {recorded}.")
    by_domain = "domain" in spec.kind and len(dataset.domain_names) > 1
    groups, names = (dataset.domains, dataset.domain_names) if by_domain else (dataset.labels, dataset.class_names)
    counts = train_counts(partition, groups, len(names))
    return Holdings(setting, partition, "domain" if by_domain else "class", names, counts)


def _who_has_what(dataset: Dataset, holdings: Sequence[Holdings], which: str) -> DrawnFigure:
    norm = Normalize(0, max(panel.counts.max() for panel in holdings))
    most = max(panel.partition.num_clients for panel in holdings)
    figure, axes = panels(len(holdings), height=min(max(0.9 + 0.14 * most, 1.9), 3.2))
    for ax, panel in zip(axes, holdings, strict=True):
        image = heat_map(ax, panel.counts, panel.what, panel.names, norm, named=NAMED, written=WRITTEN)
        clients, unseen = panel.partition.num_clients, panel.partition.unseen
        if clients <= TICKED:
            ax.set_yticks(range(0, clients, 1 if clients <= NAMED else 2))
        ax.set_title(panel.setting.label + (", half unseen" if unseen else ""))
        for client in unseen:
            ax.plot(1.02, client, "<k", transform=ax.get_yaxis_transform(), markersize=3, clip_on=False)
        label_y(ax, "client")
    whole = MaxNLocator(5, integer=True)
    figure.colorbar(image, ax=axes, label="train images", aspect=25, pad=0.02, ticks=whole)
    triangles = " Triangles: clients kept out of training." if any(panel.partition.unseen for panel in holdings) else ""
    caption = f"Who has what in {dataset.name}: train images of every client, {which}. White: none.{triangles}"
    return DrawnFigure(f"partition-{slug(dataset.name)}", f"Who has what: {dataset.name}", caption, figure)
