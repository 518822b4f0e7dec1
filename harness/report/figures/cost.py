"""Figures of what accuracy costs: bytes a client sends, FLOPs it trains with."""

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from fedprompt.harness.cells.cell import Cell
from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.core.errors import UserError
from fedprompt.harness.model.backbone import FrozenViT
from fedprompt.harness.model.weights import load_backbone
from fedprompt.harness.planning.cost import TRAIN, cost, meta_method
from fedprompt.harness.report.figures.clients import Load
from fedprompt.harness.report.figures.curves import main_settings, shown
from fedprompt.harness.report.figures.style import Canvas, Picture, label_y, legend, looks, panels

IMAGES = 2  # in the counted batch; costs of an image hardly depend on it
NOTE = "Accuracy: mean over the table's settings, then over seeds; bars: ± one sample standard deviation over seeds."


def figures_cost(suite: Suite, results: pd.DataFrame, rounds: pd.DataFrame, load: Load) -> Iterator[Picture]:
    """Accuracy against bytes and against compute, a panel a table of heterogeneity settings."""
    accuracy = whole_tables(results)
    if accuracy.empty:
        return
    sent = accuracy.join(bytes_sent(rounds), on=["column", "row"]).dropna(subset=["cost"])
    if len(sent):
        canvas = _against(suite, sent, "sent by a client in a round", bytes_label)
        caption = f"Accuracy against the bytes that a client uploads in a round. {NOTE}"
        yield Picture("accuracy-bytes", "Accuracy against bytes sent", caption, canvas)
    spent = accuracy.join(compute(suite, accuracy, load), on=["column", "row"]).dropna(subset=["cost"])
    if len(spent):
        canvas = _against(suite, spent, "training compute (GFLOPs per image and run)", lambda value: f"{value:g}")
        caption = (
            "Accuracy against training compute: FLOPs counted for one training image (forward and backward), times "
            "the epochs it is trained on in all rounds at the mean participation, plus frozen features where a method "
            f"computes them once. {NOTE}"
        )
        yield Picture("accuracy-compute", "Accuracy against training compute", caption, canvas)


def whole_tables(results: pd.DataFrame) -> pd.DataFrame:
    """Finished results of the main settings, without rows and seeds that lack a setting which others have:
    means over different settings of a table would not compare."""
    done = main_settings(results[results["status"] == "finished"]).dropna(subset=["average"])
    settings = done.groupby("table")["column"].transform("nunique")
    own = done.groupby(["table", "row", "seed"])["column"].transform("nunique")
    return done[own == settings]


def bytes_sent(rounds: pd.DataFrame) -> pd.Series:
    """Bytes up of one client in one round (`cost`), by column and row."""
    clients = rounds["cohort"].astype(str).str.count(" ") + 1
    each = rounds.assign(cost=rounds["bytes_up"] / clients)
    return each.groupby(["column", "row"])["cost"].mean()


def compute(suite: Suite, results: pd.DataFrame, load: Load) -> pd.Series:
    """GFLOPs that one training image costs in a whole run (`cost`), by column and row; counted once for equal work."""
    backbone = load_backbone(replace(suite.backbone, weights="random"), device="meta")
    rows, counts, classes = {row.key: row for row in suite.rows}, {}, {}
    costs: dict[tuple[int, str], float] = {}
    for column, key in results[["column", "row"]].drop_duplicates().itertuples(index=False):
        setting = suite.settings[column]
        cell = suite.cell(setting, rows[key], suite.seeds[0])
        if setting.dataset not in classes:
            classes[setting.dataset] = _classes(setting.dataset, load)
        number = classes[setting.dataset]
        if number is None:
            continue
        shapes = {name: value for name, value in cell.params.items() if not name.endswith("lr")}
        work = (cell.method, str(shapes), cell.protocol.epochs, number)
        if work not in counts:
            counts[work] = image_flops(cell, backbone, number)
        visit, once = counts[work]
        costs[column, key] = (cell.protocol.rounds * cell.protocol.participation * visit + once) / 1e9
    index = pd.MultiIndex.from_tuples(costs, names=["column", "row"]) if costs else None
    return pd.Series(list(costs.values()), index, float, "cost")


def image_flops(cell: Cell, backbone: FrozenViT, classes: int) -> tuple[float, float]:
    """FLOPs of one image in one visit of its client, and once in a run (frozen features)."""
    method = meta_method(cell.method, backbone, classes, **cell.params)
    flops = cost(method, 1, IMAGES, kinds={"features"}).flops
    visit = sum(stage.epochs * flops[f"{TRAIN}{stage.name}"] for stage in method.stages(cell.protocol.epochs))
    return (visit + flops["end"]) / IMAGES, flops["features"] / IMAGES


def _classes(name: str, load: Load) -> int | None:
    try:
        return load(name).num_classes
    except UserError as error:
        print(f"note: no figure of compute on {name}: {error}", file=sys.stderr)
        return None


def _against(suite: Suite, frame: pd.DataFrame, xlabel: str, text: Callable[[float], str]) -> Canvas:
    chosen, tables = looks(suite.rows), list(frame["table"].unique())
    canvas, axes = panels(len(tables), height=2.6)
    for ax, table in zip(axes, tables, strict=True):
        here = frame[frame["table"] == table]
        for key in shown(suite, here):
            own = here[here["row"] == key]
            seeds = 100 * own.groupby("seed")["average"].mean()
            bar = seeds.std() if len(seeds) > 1 else 0.0
            look = chosen[key].drawn(size=5, line=False)
            ax.errorbar(own["cost"].mean(), seeds.mean(), bar, elinewidth=0.8, capsize=1.5, **look)
        _scale(ax, here["cost"], text)
        labels = here.drop_duplicates("column")["setting"]
        ax.set(title=f"{table}\nmean over {', '.join(labels)}" if len(labels) > 1 else f"{table}\n{labels.iloc[0]}")
        ax.set_xlabel(xlabel)
        label_y(ax, "average accuracy (%)")
    legend(canvas, shown(suite, frame), chosen, lines=False)
    return canvas


def _scale(ax: Axes, costs: pd.Series, text: Callable[[float], str]) -> None:
    """Logarithms; zero, for a method that sends nothing, has a place of its own beside them."""
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


def bytes_label(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:g} {unit}" if count else "0"
        count /= 1000
    return f"{count:g} GB"
