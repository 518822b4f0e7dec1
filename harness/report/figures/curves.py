"""Figures over rounds and over the number of averaged draws V."""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedprompt.datasets import short_name
from fedprompt.harness.report.comparisons import draws
from fedprompt.harness.report.figures.style import (
    GREY,
    PAGE,
    PALE,
    DrawnFigure,
    distinct_colours,
    label_y,
    legend,
    looks,
    panels,
)
from fedprompt.harness.report.numbers import Number
from fedprompt.harness.report.values import round_values
from fedprompt.harness.running.suite import Setting, Suite

MOST_PANELS = 6  # of one figure
BAND = 0.13  # opacity of bands
FEW = 5  # rows of a panel that are all drawn in colour
BEST = 3  # of more rows, those that stand out next to the control


def figures_rounds(suite: Suite, records: pd.DataFrame, numbers: Sequence[Number]) -> Iterator[DrawnFigure]:
    """Accuracy of the evaluated rounds, with one panel per setting.

    Training losses have no figure: each method defines its own, and MLflow shows them.
    """
    accuracies = round_values(suite.settings, main_settings(records))
    controls = {number.row for number in numbers if number.control}
    for part in figure_parts(suite, accuracies.assign(value=100 * accuracies["value"])):
        caption = (
            "Test accuracy over communication rounds, mean over clients, where it was evaluated; mean over seeds. In "
            f"colour: the control and the {BEST} best rows of each panel, with bands of ± one sample standard "
            "deviation over seeds; grey: the other rows."
        )
        figure = _over_rounds(suite, part.frame, controls)
        yield DrawnFigure(f"accuracy-rounds{part.suffix}", f"Accuracy over rounds{part.about}", caption, figure)


def main_settings(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of the heterogeneity settings, or of all settings where a suite has none."""
    main = frame[frame["kind"] == "heterogeneity"]
    return main if len(main) else frame


class FigurePart(NamedTuple):
    """What goes into one figure, and how its name and title end."""

    frame: pd.DataFrame
    suffix: str = ""
    about: str = ""


def figure_parts(suite: Suite, frame: pd.DataFrame) -> Iterator[FigurePart]:
    """All settings in one figure, or one figure per table where they would not fit on a printed page."""
    if frame.empty:
        return
    if frame["column"].nunique() <= MOST_PANELS:
        yield FigurePart(frame)
        return
    tables = frame["column"].map(lambda column: suite.settings[column].table)
    for number, (table, part) in enumerate(frame.groupby(tables, sort=False), start=1):
        yield FigurePart(part, f"-{number}", f": {table}")


def setting_name(setting: Setting) -> str:
    """What panels are called."""
    return f"{short_name(setting.dataset)}, {setting.label}"


def titles_shown(suite: Suite, frame: pd.DataFrame) -> dict[str, str]:
    """Titles of the rows in ``frame``, by key, in the tables' order."""
    return {row.key: row.title for row in suite.rows if (frame["row"] == row.key).any()}


def band(ax: Axes, frame: pd.DataFrame, over: str, value: str, label: str, **drawn: Any) -> None:
    """The mean over seeds as a line, one sample standard deviation to each side as a band."""
    stats = frame.groupby(over)[value].agg(["mean", "std"]).sort_index()
    # Many points are marked at equal distances along the line: the last rounds are all evaluated and lie close.
    ax.plot(stats.index, stats["mean"], label=label, markevery=1 if len(stats) <= 12 else 0.15, **drawn)
    if stats["std"].notna().any():
        low, high = stats["mean"] - stats["std"], stats["mean"] + stats["std"]
        ax.fill_between(stats.index, low, high, color=drawn.get("color"), alpha=BAND, linewidth=0)


def _over_rounds(suite: Suite, frame: pd.DataFrame, controls: Collection[str]) -> Figure:
    columns = sorted(frame["column"].unique())
    figure, axes = panels(len(columns))
    shown_in = {column: _highlighted(frame[frame["column"] == column], controls) for column in columns}
    titles = titles_shown(suite, frame)
    named = {key: title for key, title in titles.items() if key in set().union(*shown_in.values())}
    row_looks = distinct_colours(looks(suite.rows), named)
    for ax, column in zip(axes, columns, strict=True):
        panel, shown = frame[frame["column"] == column], shown_in[column]
        for key, title in titles_shown(suite, panel).items():
            row = panel[panel["row"] == key]
            if key in shown:
                band(ax, row, "round", "value", title, **row_looks[key].drawn())
            else:
                means = row.groupby("round")["value"].mean()
                ax.plot(means.index, means, color=PALE, linewidth=0.7, zorder=1)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        ax.set(title=setting_name(suite.settings[column]), xlabel="round")
        label_y(ax, "average accuracy (%)")
    legend(figure, named, row_looks, others="other rows" if len(named) < len(titles) else "")
    return figure


def _highlighted(frame: pd.DataFrame, controls: Collection[str]) -> set[str]:
    """The control, and the best rows in the last evaluated round; all of them where they are few."""
    last = frame[frame["round"] == frame["round"].max()].groupby("row")["value"].mean().sort_values(ascending=False)
    if len(last) <= FEW:
        return set(last.index)
    return {*last.index[:BEST], *(key for key in last.index if key in controls)}


def figures_vsweep(suite: Suite, results: pd.DataFrame, numbers: Sequence[Number]) -> Iterator[DrawnFigure]:
    """Accuracy over V and its paired difference to V=1 with its interval, one row of panels per setting."""
    swept = sweep(results)
    if swept.empty:
        return
    columns, row_looks = sorted(swept["column"].unique()), looks(suite.rows)
    figure = Figure(figsize=(PAGE, 2.3 * len(columns)), layout="constrained")
    for (left, right), column in zip(figure.subplots(len(columns), 2, squeeze=False), columns, strict=True):
        setting, panel = suite.settings[column], swept[swept["column"] == column]
        here = [number for number in numbers if number.column == column]
        for key, title in titles_shown(suite, panel).items():
            row = panel[panel["row"] == key]
            band(left, row, "draws", "value", title, **row_looks[key].drawn())
            _gains_over_one(right, [n for n in here if n.row == key], title, **row_looks[key].drawn())
        for v, printed in published_points(setting, here):
            left.plot(v, printed, "*", color=GREY, markersize=8, label=f"published (V={v})")
            left.legend(loc="best")
        right.axhline(0, color=GREY, linewidth=0.8)
        left.set(title=setting_name(setting), ylabel="average accuracy (%)")
        right.set(title=f"{setting_name(setting)}: against V=1", ylabel="difference (points)")
        for ax in (left, right):
            ax.set(xlabel="averaged draws V", xticks=sorted(panel["draws"].unique()))
    legend(figure, titles_shown(suite, swept), row_looks)
    caption = (
        "Accuracy with the mean of V predictions, all from one training and nested draws. Left: mean over seeds; "
        "band: ± one sample standard deviation over seeds. Right: difference to V=1, paired by seed and client, with "
        "its 95 % interval over further clients and seeds."
    )
    yield DrawnFigure("v-sweep", "Accuracy over the number of draws V", caption, figure)


def _gains_over_one(ax: Axes, numbers: Sequence[Number], label: str, **drawn: Any) -> None:
    """Gains over a single draw as a line, their intervals as bars."""
    gains = {draws(number.metric): number.gain for number in numbers if number.gain}
    points = [gain.points for gain in gains.values()]
    below, above = (
        [gain.points - gain.low for gain in gains.values()],
        [gain.high - gain.points for gain in gains.values()],
    )
    ax.errorbar(list(gains), points, (below, above), capsize=2, label=label, **drawn)


def sweep(results: pd.DataFrame) -> pd.DataFrame:
    """One row per setting, row, seed and V: accuracy (`value`, in percent)."""
    draws_of = {name: v for name in results if (v := draws(str(name)))}
    finished = results[(results["kind"] == "vsweep") & (results["status"] == "finished")]
    keys = ["column", "row", "title", "seed"]
    long = finished.melt(keys, list(draws_of), "draws", "value").dropna(subset=["value"])
    long = long.assign(draws=long["draws"].map(draws_of).astype(int), value=100 * long["value"].astype(float))
    return long.sort_values([*keys, "draws"], ignore_index=True)


def published_points(setting: Setting, numbers: Sequence[Number]) -> list[tuple[int, float]]:
    """V and the paper's value, only for the data it was measured on: glyphs that mirror them do not count."""
    dataset, printed_for = (re.sub(r"[^a-z0-9]", "", name.lower()) for name in (setting.dataset, setting.published))
    if dataset != printed_for:
        return []
    return [(draws(number.metric), number.printed.value) for number in numbers if number.printed]
