"""Figures of tuning: validation accuracy over what was tried."""

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedprompt.core.fields import is_rate
from fedprompt.harness.report.figures.style import DrawnFigure, Look, label_y, legend, looks, panels
from fedprompt.harness.running.suite import Row

ABOUT = ("method", "title", "dataset", "partition", "head", "setting", "value", "state", "chosen")
SPACED = 8  # as many values at most are spaced evenly, whatever they are


def figures_tuning(frame: pd.DataFrame) -> Iterator[DrawnFigure]:
    """One figure per searched parameter, with one panel per setting and owner of the head, and one line per method.

    ``frame`` is that of `tuning_frame`.
    """
    tried = frame.dropna(subset=["value"]) if len(frame) else frame
    for name in [str(column) for column in tried if column not in ABOUT]:
        varied = tried.groupby("method")[name].transform("nunique") > 1
        if varied.any():
            caption = (
                f"Validation accuracy over {name}, on held-out training data and tuning seeds; where other parameters "
                "were searched too, the best over them. Rings: the chosen values."
            )
            yield DrawnFigure(
                f"tuning-{name.replace('_', '-')}", f"Tuning of {name}", caption, _over(tried[varied], name)
            )


def _over(tried: pd.DataFrame, name: str) -> Figure:
    titles: dict[str, str] = dict(tried[["method", "title"]].drop_duplicates().itertuples(index=False))
    row_looks = looks([Row(key, title, key) for key, title in titles.items()])
    values = sorted(tried[name].dropna().unique(), key=lambda value: (isinstance(value, str), value))
    spaced = len(values) <= SPACED and not is_rate(name)
    places = {value: place if spaced else value for place, value in enumerate(values)}
    settings = tried.groupby(["dataset", "partition", "head", "setting"], sort=False)
    heads = tried["head"].nunique()
    figure, axes = panels(settings.ngroups)
    for ax, ((dataset, _, head, label), here) in zip(axes, settings, strict=True):
        for key, trials in here.groupby("method", sort=False):
            _line(ax, trials.assign(place=trials[name].map(places)), row_looks[str(key)])
        if spaced:
            ax.set_xticks(list(places.values()), [_text(value) for value in values])
            ax.set_xlim(-0.3, len(values) - 0.7)
        elif min(values) > 0:
            ax.set_xscale("log")
        ax.set(title=f"{dataset}, {label}{f', {head} head' if heads > 1 else ''}", xlabel=name)
        label_y(ax, "validation accuracy (%)")
    legend(figure, titles, row_looks)
    return figure


def _line(ax: Axes, trials: pd.DataFrame, look: Look) -> None:
    best = 100 * trials.groupby("place")["value"].max().sort_index()
    ax.plot(best.index, best, **look.drawn())
    best_trials = trials[trials["chosen"].astype(bool)]
    ax.plot(
        best_trials["place"],
        100 * best_trials["value"],
        "o",
        markersize=8,
        markerfacecolor="none",
        markeredgecolor=look.colour,
    )


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
