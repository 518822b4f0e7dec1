"""Figures of what accuracy costs: the bytes a client sends, the FLOPs it trains with."""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.weights import load_backbone
from fedprompt.core.errors import UserError
from fedprompt.core.text import scaled
from fedprompt.harness.federation import hooks
from fedprompt.harness.planning.cost import BEGIN, TRAIN, cost, meta_method
from fedprompt.harness.report.collect import Recorded
from fedprompt.harness.report.figures.clients import LoadDataset
from fedprompt.harness.report.figures.curves import main_settings, titles_shown
from fedprompt.harness.report.figures.style import DrawnFigure, label_y, legend, looks, panels
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.suite import Suite

IMAGES = 2  # in the counted batch; the cost of one image hardly depends on it
NOTE = "Accuracy: mean over the table's settings, then over seeds; bars: ± one sample standard deviation over seeds."


Counted = dict[tuple[Any, ...], tuple[float, float]]  # what `image_flops` says, by all that it depends on


def figures_cost(recorded: Recorded, load: LoadDataset, counted: Counted | None = None) -> Iterator[DrawnFigure]:
    """Accuracy against bytes and against compute, with one panel per table of heterogeneity settings.

    ``counted`` keeps what was counted for other policies of the suite, and is added to.
    """
    suite, accuracy = recorded.suite, whole_tables(recorded.results)
    if accuracy.empty:
        return
    sent = accuracy.join(bytes_sent(recorded.rounds), on=["column", "row"]).dropna(subset=["cost"])
    if len(sent):
        figure = _against(suite, sent, "sent by a client in a round", lambda count: scaled(count, "B"))
        caption = f"Accuracy against the bytes that a client uploads in a round. {NOTE}"
        yield DrawnFigure("accuracy-bytes", "Accuracy against bytes sent", caption, figure)
    costs = compute(recorded, accuracy, load, {} if counted is None else counted)
    if len(costs):  # none where the data are not at hand
        spent = accuracy.join(costs, on=["column", "row"]).dropna(subset=["cost"])
        figure = _against(suite, spent, "training compute (GFLOPs per image and run)", lambda value: f"{value:g}")
        caption = (
            "Accuracy against training compute: FLOPs counted for one training image (forward and backward), times "
            "the epochs it is trained on in all rounds at the mean participation, plus frozen features where a method "
            f"computes them once. {NOTE}"
        )
        yield DrawnFigure("accuracy-compute", "Accuracy against training compute", caption, figure)


def whole_tables(results: pd.DataFrame) -> pd.DataFrame:
    """Finished results of the main settings, of rows and seeds that have finished every setting of a table.

    Means over different settings would not compare.
    """
    done = main_settings(results[results["status"] == "finished"]).dropna(subset=["average"])
    settings = done.groupby("table")["column"].transform("nunique")
    finished = done.groupby(["table", "row", "seed"])["column"].transform("nunique")
    return done[finished == settings]


def bytes_sent(rounds: pd.DataFrame) -> pd.Series:
    """Bytes that one client uploads in one round (`cost`), by column and row."""
    clients = rounds["cohort"].astype(str).str.count(" ") + 1
    per_client = rounds.assign(cost=rounds["bytes_up"] / clients)
    return per_client.groupby(["column", "row"])["cost"].mean()


def compute(recorded: Recorded, results: pd.DataFrame, load: LoadDataset, counted: Counted) -> pd.Series:
    """GFLOPs that one training image costs in a whole run (`cost`), by column and row; counted once for equal work."""
    backbone = load_backbone(replace(recorded.suite.backbone, weights="random"), device="meta")
    cells = {entry.cell.hash: entry.cell for entry in recorded.planned}
    classes: dict[str, int | None] = {}
    costs: dict[tuple[int, str], float] = {}
    entries = results.drop_duplicates(["column", "row"])[["column", "row", "cell"]]
    for column, key, cell_hash in entries.itertuples(index=False):
        cell = cells[cell_hash]
        if cell.dataset not in classes:
            classes[cell.dataset] = _classes(cell.dataset, load)
        number = classes[cell.dataset]
        if number is None:
            continue
        shapes = {name: value for name, value in cell.params.items() if not name.endswith("lr")}
        work = (cell.method, str(shapes), cell.protocol.epochs, number)
        if work not in counted:
            counted[work] = image_flops(cell, backbone, number)
        visit, once = counted[work]
        costs[column, key] = (cell.protocol.rounds * cell.protocol.participation * visit + once) / 1e9
    index = pd.MultiIndex.from_tuples(costs, names=["column", "row"]) if costs else None
    return pd.Series(list(costs.values()), index, float, "cost")


def image_flops(cell: Cell, backbone: FrozenViT, classes: int) -> tuple[float, float]:
    """FLOPs of one image per visit of its client, and once per run (frozen features)."""
    method = meta_method(cell.method, backbone, classes, **cell.params)
    flops = cost(method, 1, IMAGES, kinds={"features"}).flops
    visit = sum(stage.epochs * flops[f"{TRAIN}{stage.name}"] for stage in hooks.stages(method, cell.protocol.epochs))
    return (flops[BEGIN] + visit + flops["end"]) / IMAGES, flops["features"] / IMAGES


def _classes(name: str, load: LoadDataset) -> int | None:
    try:
        return load(name).num_classes
    except UserError as error:
        print(f"note: no figure of compute on {name}: {error}", file=sys.stderr)
        return None


def _against(suite: Suite, frame: pd.DataFrame, xlabel: str, text: Callable[[float], str]) -> Figure:
    row_looks, tables = looks(suite.rows), list(frame["table"].unique())
    figure, axes = panels(len(tables), height=2.6)
    for ax, table in zip(axes, tables, strict=True):
        panel = frame[frame["table"] == table]
        for key in titles_shown(suite, panel):
            row = panel[panel["row"] == key]
            seeds = 100 * row.groupby("seed")["average"].mean()
            bar = seeds.std() if len(seeds) > 1 else 0.0
            look = row_looks[key].drawn(size=5, line=False)
            ax.errorbar(row["cost"].mean(), seeds.mean(), bar, elinewidth=0.8, capsize=1.5, **look)
        _scale(ax, panel["cost"], text)
        labels = panel.drop_duplicates("column")["setting"]
        ax.set(title=f"{table}\nmean over {', '.join(labels)}" if len(labels) > 1 else f"{table}\n{labels.iloc[0]}")
        ax.set_xlabel(xlabel)
        label_y(ax, "average accuracy (%)")
    legend(figure, titles_shown(suite, frame), row_looks, lines=False)
    return figure


def _scale(ax: Axes, costs: pd.Series, text: Callable[[float], str]) -> None:
    """Logarithmic; zero, for a method that sends nothing, has its own place next to it."""
    above = costs[costs > 0]
    if len(above) and (costs == 0).any():
        first, last = (math.floor(math.log10(edge)) for edge in (above.min(), above.max()))
        ax.set_xscale("symlog", linthresh=10.0**first, linscale=0.5)
        ax.set_xticks([0, *(10.0**power for power in range(first, last + 1))])
        ax.minorticks_off()
    elif len(above):
        ax.set_xscale("log")
        if above.max() < 100 * above.min():
            ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    ax.xaxis.set_minor_formatter(NullFormatter())
