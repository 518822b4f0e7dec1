"""Figures over rounds and over the number of averaged draws V."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedprompt.harness.cells.suite import Setting, Suite
from fedprompt.harness.report.figures.style import GREY, PAGE, Canvas, Picture, label_y, legend, looks, panels

VALUES = re.compile(r"average_samples_(\d+)")
PUBLISHED_V = 5  # draws behind the paper's numbers
PUBLISHED = {("DomainNet", "m=6"): 89.90, ("CIFAR-100", "s=50"): 82.21}  # pFedBayesPT, Average, in percent
MOST = 6  # panels of a figure
BAND = 0.13  # opacity, so that thirteen bands leave the lines visible


def figures_rounds(suite: Suite, records: pd.DataFrame, rounds: pd.DataFrame) -> Iterator[Picture]:
    """Accuracy of the evaluated rounds and the training loss of all, a panel a setting."""
    note = "Mean over seeds; bands: ± one sample standard deviation over seeds."
    for page in pages(per_round_and_seed(suite, main_settings(records))):
        canvas = _over_rounds(suite, page.frame, "average accuracy (%)")
        caption = f"Test accuracy over communication rounds, mean over clients, where it was evaluated. {note}"
        yield Picture(f"accuracy-rounds{page.suffix}", f"Accuracy over rounds{page.about}", caption, canvas)
    for page in pages(main_settings(rounds).rename(columns={"loss": "value"}).dropna(subset=["value"])):
        canvas = _over_rounds(suite, page.frame, "training loss (nats)", may_be_log=True)
        caption = (
            "Training loss over communication rounds, mean over the round's cohort, as each method defines it "
            f"(penalties included: levels compare within a method, not between methods). {note}"
        )
        yield Picture(f"loss-rounds{page.suffix}", f"Training loss over rounds{page.about}", caption, canvas)


def main_settings(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of the heterogeneity settings, or of all settings where a suite has none."""
    main = frame[frame["kind"] == "heterogeneity"]
    return main if len(main) else frame


class Page(NamedTuple):
    """What goes into one figure, and how its name and its title end."""

    frame: pd.DataFrame
    suffix: str = ""
    about: str = ""


def pages(frame: pd.DataFrame) -> Iterator[Page]:
    """All settings in one figure, or a figure a table where they would not fit on a printed page."""
    if frame.empty:
        return
    if frame["column"].nunique() <= MOST:
        yield Page(frame)
        return
    for number, (table, part) in enumerate(frame.groupby("table", sort=False), start=1):
        yield Page(part, f"-{number}", f": {table}")


def per_round_and_seed(suite: Suite, records: pd.DataFrame) -> pd.DataFrame:
    """A row a setting, row, seed and round; `value` is the mean accuracy of the clients that train, in percent."""
    if records.empty:
        return records
    own = records[~records["unseen"].astype(bool) & (records["samples"] == 0)]
    left_out = [i for i, setting in enumerate(suite.settings) if setting.protocol.get("never_sampled") == "exclude"]
    own = own[own["participated"].astype(bool) | ~own["column"].isin(left_out)]
    keys = ["table", "column", "row", "title", "seed", "round"]
    return (100 * own.groupby(keys, sort=False)["accuracy"].mean()).rename("value").reset_index()


def setting_name(setting: Setting) -> str:
    return f"{setting.dataset.rpartition('/')[2]}, {setting.label}"  # of `folder:PATH` the last part


def shown(suite: Suite, frame: pd.DataFrame) -> dict[str, str]:
    """Titles of the rows that ``frame`` has, by key, in the tables' order."""
    return {row.key: row.title for row in suite.rows if (frame["row"] == row.key).any()}


def band(ax: Axes, frame: pd.DataFrame, over: str, value: str, label: str, **drawn: Any) -> None:
    """The mean over seeds as a line, one sample standard deviation to each side as a band."""
    stats = frame.groupby(over)[value].agg(["mean", "std"]).sort_index()
    # Many points are marked in equal distances along the line: the last rounds are all evaluated and lie close.
    ax.plot(stats.index, stats["mean"], label=label, markevery=1 if len(stats) <= 12 else 0.15, **drawn)
    if stats["std"].notna().any():
        low, high = stats["mean"] - stats["std"], stats["mean"] + stats["std"]
        ax.fill_between(stats.index, low, high, color=drawn.get("color"), alpha=BAND, linewidth=0)


def _over_rounds(suite: Suite, frame: pd.DataFrame, ylabel: str, may_be_log: bool = False) -> Canvas:
    columns, chosen = sorted(frame["column"].unique()), looks(suite.rows)
    canvas, axes = panels(len(columns))
    for ax, column in zip(axes, columns, strict=True):
        here = frame[frame["column"] == column]
        for key, title in shown(suite, here).items():
            band(ax, here[here["row"] == key], "round", "value", title, **chosen[key].drawn())
        if may_be_log and here["value"].min() > 0 and here["value"].max() > 30 * here["value"].min():
            ax.set_yscale("log")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        ax.set(title=setting_name(suite.settings[column]), xlabel="round")
        label_y(ax, ylabel)
    legend(canvas, shown(suite, frame), chosen)
    return canvas


def figures_vsweep(suite: Suite, results: pd.DataFrame) -> Iterator[Picture]:
    """Accuracy over V and its difference to V=1, seed by seed, a line of panels a setting."""
    swept = sweep(results)
    if swept.empty:
        return
    columns, chosen = sorted(swept["column"].unique()), looks(suite.rows)
    canvas = Canvas(figsize=(PAGE, 2.3 * len(columns)), layout="constrained")
    for (left, right), column in zip(canvas.subplots(len(columns), 2, squeeze=False), columns, strict=True):
        setting, here = suite.settings[column], swept[swept["column"] == column]
        for key, title in shown(suite, here).items():
            own = here[here["row"] == key]
            band(left, own, "draws", "value", title, **chosen[key].drawn())
            band(right, own, "draws", "gain", title, **chosen[key].drawn())
        printed = published_point(setting)
        if printed is not None:
            left.plot(PUBLISHED_V, printed, "*", color=GREY, markersize=8, label="published (V=5)")
            left.legend(loc="best")
        right.axhline(0, color=GREY, linewidth=0.8)
        left.set(title=setting_name(setting), ylabel="average accuracy (%)")
        right.set(title=f"{setting_name(setting)}: against V=1", ylabel="difference (points)")
        for ax in (left, right):
            ax.set(xlabel="averaged draws V", xticks=sorted(here["draws"].unique()))
    legend(canvas, shown(suite, swept), chosen)
    caption = (
        "Accuracy with the mean of V predictions, all from one training and nested draws. Left: mean over seeds; "
        "right: difference to V=1 of the same seed. Bands: ± one sample standard deviation over seeds, on the right of "
        "the paired differences."
    )
    yield Picture("v-sweep", "Accuracy over the number of draws V", caption, canvas)


def sweep(results: pd.DataFrame) -> pd.DataFrame:
    """A row a setting, row, seed and V of V-sweeps: accuracy (`value`, in percent) and `gain` over the seed's V=1."""
    found = {name: int(match[1]) for name in results if (match := VALUES.fullmatch(str(name)))}
    own = results[(results["kind"] == "vsweep") & (results["status"] == "finished")]
    keys = ["column", "row", "title", "seed"]
    long = own.melt(keys, list(found), "draws", "value").dropna(subset=["value"])
    long = long.assign(draws=long["draws"].map(found).astype(int), value=100 * long["value"].astype(float))
    first = long[long["draws"] == 1].set_index(keys)["value"].rename("first")
    long = long.join(first, on=keys)
    return long.assign(gain=long["value"] - long["first"]).sort_values([*keys, "draws"], ignore_index=True)


def published_point(setting: Setting) -> float | None:
    """The paper's value at V=5, only for the data it was measured on: glyphs that mirror them do not count."""
    plain = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in (setting.dataset, setting.published)]
    return PUBLISHED.get((setting.published, setting.label)) if plain[0] == plain[1] else None
