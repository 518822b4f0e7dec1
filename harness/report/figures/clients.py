"""Figures of clients: how far their accuracies spread, and who has what."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.ticker import MaxNLocator

from fedprompt.datasets import Dataset, Partition, make_partition, parse_partition
from fedprompt.harness.cells.suite import Setting, Suite
from fedprompt.harness.core.errors import UserError
from fedprompt.harness.core.fields import build
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.report.figures.curves import main_settings, pages, setting_name, shown
from fedprompt.harness.report.figures.style import GREY, Canvas, Picture, label_y, looks, panels
from fedprompt.harness.report.tables import slug

Load = Callable[[str], Dataset]  # by name; a UserError where the data are not at hand
# One hue, read alike by colour-blind eyes and in grey; it starts above white, which means nothing at all.
SHADES = LinearSegmentedColormap.from_list("shades", ["#cfe1f2", "#4292c6", "#08306b"])
NAMED = 12  # more classes or domains than this are numbered
LISTED = 25  # more clients than this are ticked as numbers are
WRITTEN = 64  # cells of a heat map that carry their number, at most


def figures_spread(suite: Suite, records: pd.DataFrame) -> Iterator[Picture]:
    """A dot a client and seed, with the quartiles over them, a line a method and a panel a setting."""
    for page in pages(client_accuracies(suite, main_settings(records))):
        caption = (
            "Accuracies of the clients, mean over the reported rounds: a dot a client and seed; box: quartiles over "
            "them, bar: median, diamond: mean."
        )
        title = f"Spread of accuracy over clients{page.about}"
        yield Picture(f"client-spread{page.suffix}", title, caption, _spread(suite, page.frame))


def _spread(suite: Suite, clients: pd.DataFrame) -> Canvas:
    columns, chosen = sorted(clients["column"].unique()), looks(suite.rows)
    titles = shown(suite, clients)
    places = {key: place for place, key in enumerate(titles)}
    canvas, axes = panels(len(columns), height=0.55 + 0.155 * len(titles), sharey=True)
    for ax, column in zip(axes, columns, strict=True):
        for key, own in clients[clients["column"] == column].groupby("row", sort=False):
            _line_of_clients(ax, own["value"].to_numpy(), places[str(key)], chosen[str(key)].colour)
        ax.set_yticks(list(places.values()), list(titles.values()))
        ax.set_ylim(len(titles) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
        ax.set(title=setting_name(suite.settings[column]), xlabel="accuracy of a client (%)")
    return canvas


def client_accuracies(suite: Suite, records: pd.DataFrame) -> pd.DataFrame:
    """A row a setting, row, seed and client that trains; `value` is its mean over the reported rounds, in percent."""
    if records.empty:
        return records
    own = records[~records["unseen"].astype(bool) & (records["samples"] == 0)]
    rules = [build(Protocol, setting.protocol, "protocol") for setting in suite.settings]
    first = own["column"].map({i: rule.rounds - rule.last + 1 for i, rule in enumerate(rules)})
    keys = ["table", "column", "row", "title", "seed", "client"]
    means = 100 * own[own["round"] >= first].groupby(keys, sort=False)["accuracy"].mean()
    return means.dropna().rename("value").reset_index()


def _line_of_clients(ax: Axes, values: np.ndarray, y: float, colour: str) -> None:
    # Dots lie apart by their number, not by chance: equal data give an equal picture.
    lift = 0.26 * np.sin(2.4 * np.arange(len(values)))
    low, middle, high = np.percentile(values, [25, 50, 75])
    ax.plot(values, y + lift, ".", color=colour, markersize=2.2, alpha=0.75 if len(values) <= 60 else 0.3)
    ax.barh(y, high - low, 0.62, low, facecolor=colour, alpha=0.25, zorder=2)
    ax.plot([middle, middle], [y - 0.31, y + 0.31], color=colour, linewidth=1.4)
    ax.plot(values.mean(), y, "D", color="white", markeredgecolor="black", markersize=3, markeredgewidth=0.7)


def figures_partition(suite: Suite, records: pd.DataFrame, load: Load) -> Iterator[Picture]:
    """Train images of every client by domain or class, a figure a data set and a panel a partition; of one seed."""
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
            dealt = [_dealt(suite.settings[column], dataset, seed, recorded[column]) for column in columns.values()]
        except UserError as error:
            print(f"note: no picture of who has what in {name}: {error}", file=sys.stderr)
        else:
            yield _who_has_what(dataset, dealt, f"seed {seed}")


class Dealt(NamedTuple):
    setting: Setting
    partition: Partition
    what: str  # is dealt: `domain` or `class`
    names: tuple[str, ...]  # of domains or classes
    counts: np.ndarray  # train images, clients x names


def _dealt(setting: Setting, dataset: Dataset, seed: int, recorded: str) -> Dealt:
    """The partition made again, which needs no artifact but must be the recorded one."""
    held_out = build(Protocol, setting.protocol, "protocol").val_fraction
    spec = parse_partition(setting.partition)
    partition = make_partition(spec, dataset, seed, held_out)
    if not partition.hash.startswith(recorded):
        raise UserError(f"the data here give another partition ({partition.hash[:16]}) than the recorded {recorded}.")
    by_domain = "domain" in spec.kind and len(dataset.domain_names) > 1
    groups, names = (dataset.domains, dataset.domain_names) if by_domain else (dataset.labels, dataset.class_names)
    counts = [np.bincount(np.asarray(groups)[part], minlength=len(names)) for part in partition.train]
    return Dealt(setting, partition, "domain" if by_domain else "class", names, np.array(counts))


def _who_has_what(dataset: Dataset, dealt: Sequence[Dealt], which: str) -> Picture:
    norm = Normalize(0, max(panel.counts.max() for panel in dealt))
    most = max(panel.partition.num_clients for panel in dealt)
    canvas, axes = panels(len(dealt), height=min(max(0.9 + 0.14 * most, 1.9), 3.2))
    for ax, panel in zip(axes, dealt, strict=True):
        _heat_map(ax, panel, norm)
        unseen = panel.partition.unseen
        ax.set_title(panel.setting.label + (", half unseen" if unseen else ""))
        for client in unseen:
            ax.plot(1.02, client, "<k", transform=ax.get_yaxis_transform(), markersize=3, clip_on=False)
        label_y(ax, "client")
    whole = MaxNLocator(5, integer=True)
    canvas.colorbar(ScalarMappable(norm, SHADES), ax=axes, label="train images", aspect=25, pad=0.02, ticks=whole)
    triangles = " Triangles: clients kept out of training." if any(panel.partition.unseen for panel in dealt) else ""
    caption = f"Who has what in {dataset.name}: train images of every client, {which}. White: none.{triangles}"
    return Picture(f"partition-{slug(dataset.name)}", f"Who has what: {dataset.name}", caption, canvas)


def _heat_map(ax: Axes, panel: Dealt, norm: Normalize) -> None:
    clients, columns = panel.counts.shape
    ax.imshow(np.ma.masked_equal(panel.counts, 0), cmap=SHADES, norm=norm, aspect="auto", interpolation="nearest")
    if panel.counts.size <= WRITTEN:
        for (row, column), count in np.ndenumerate(panel.counts):
            shade = "white" if norm(count) > 0.45 else "black"
            ax.text(column, row, str(count or ""), ha="center", va="center", fontsize=6, color=shade)
    ax.grid(visible=False)
    ax.spines[:].set(visible=True, color=GREY)
    if columns <= NAMED:
        ax.set_xticks(range(columns), panel.names, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_xlabel(panel.what if columns <= NAMED else f"{panel.what} (number)")
    if clients <= LISTED:
        ax.set_yticks(range(0, clients, 1 if clients <= NAMED else 2))
