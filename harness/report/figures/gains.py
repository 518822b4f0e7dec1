"""The figure that the suite is about: what each row gains over its control, with intervals."""

from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedprompt.harness.report.collect import POLICY_HEADINGS
from fedprompt.harness.report.comparisons import COMPARED
from fedprompt.harness.report.components import COLLAPSED
from fedprompt.harness.report.figures.curves import figure_parts, setting_name
from fedprompt.harness.report.figures.style import COLOURS, GREY, DrawnFigure, panels
from fedprompt.harness.report.numbers import Number
from fedprompt.harness.running.suite import Suite

KINDS = ("heterogeneity", "unseen", "novel", "target")
SHAPES = ("o", "s", "D", "^")  # one per policy
LANE = 0.24  # between two policies of a row
# Neither rows that collapse nor intervals this many times as wide as the panel's median set the scale of a panel.
WIDE = 4


def figures_gains(suite: Suite, numbers: Sequence[Number]) -> Iterator[DrawnFigure]:
    """One panel per setting, one line per row, one mark per head policy."""
    gains = _gains_frame(numbers)
    for part in figure_parts(suite, gains):
        caption = (
            "Gain over the control under the same head policy, in points, paired by seed and client, with its 95 % "
            "interval over further clients and seeds. Filled: significantly different from zero, adjusted for all "
            "comparisons of the setting under that policy; hollow: not significant."
        )
        drawn = [numbers for _, numbers in part.frame.groupby("column")]
        if any(_too_wide(numbers).any() for numbers in drawn):
            caption += " Arrow: the interval goes on beyond the panel."
        if part.frame["collapsed"].any():
            caption += " Number at an arrow: the gain there, of a row with less than half of the control's accuracy."
        yield DrawnFigure(
            f"gains{part.suffix}", f"Gains over the control{part.about}", caption, _gains(suite, part.frame)
        )


def _gains_frame(numbers: Sequence[Number]) -> pd.DataFrame:
    """One line per row that is compared with a control: the interval of its gain, and whether it has collapsed."""
    lines = [
        {
            **{"column": n.column, "policy": n.policy, "row": n.row},
            **{"gain": gain.points, "low": gain.low, "high": gain.high, "significant": gain.significant},
            "collapsed": n.mean < COLLAPSED * (n.mean - gain.points),
        }
        for n in numbers
        if n.kind in KINDS and n.metric == COMPARED[n.kind] and (gain := n.gain) and not n.control
    ]
    return pd.DataFrame(lines)


def _gains(suite: Suite, gains: pd.DataFrame) -> Figure:
    columns, policies = sorted(gains["column"].unique()), list(gains["policy"].unique())
    titles = {row.key: row.title for row in suite.rows if (gains["row"] == row.key).any()}
    figure, axes = panels(len(columns), height=0.7 + 0.075 * (len(policies) + 1) * len(titles), sharey=True)
    for ax, column in zip(axes, columns, strict=True):
        setting, numbers = suite.settings[column], gains[gains["column"] == column]
        if (_too_wide(numbers) | numbers["collapsed"]).any():
            ax.set_xlim(*_limits(numbers))
        for lane, policy in enumerate(policies):
            shown = numbers[numbers["policy"] == policy].set_index("row")
            for place, key in enumerate(titles):
                if key in shown.index:
                    _mark(ax, shown.loc[key], place + LANE * (lane - (len(policies) - 1) / 2), lane)
        ax.axvline(0, color=GREY, linewidth=0.8, zorder=1)
        ax.set_yticks(range(len(titles)), list(titles.values()))
        ax.set_ylim(len(titles) - 0.4, -0.6)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
        ax.set(title=setting_name(setting) + (", unseen" if setting.kind == "unseen" else ""), xlabel="gain (points)")
    if len(policies) > 1:
        width, height = figure.get_size_inches()
        figure.set_size_inches(width, height + 0.2)
        handles = [
            Line2D([], [], color=COLOURS[lane], marker=SHAPES[lane], markersize=4, label=POLICY_HEADINGS[policy])
            for lane, policy in enumerate(policies)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(policies))
    return figure


def _too_wide(numbers: pd.DataFrame) -> "pd.Series[bool]":
    widths = numbers["high"] - numbers["low"]
    return widths > WIDE * widths.median()


def _limits(numbers: pd.DataFrame) -> tuple[float, float]:
    """Of a panel that shows every gain but those of collapsed rows, and every interval that is not too wide."""
    numbers = numbers[~numbers["collapsed"]]
    steady = numbers[~_too_wide(numbers)]
    low = min(0, numbers["gain"].min(), steady["low"].min())
    high = max(0, numbers["gain"].max(), steady["high"].max())
    margin = 0.1 * (high - low)
    return low - margin, high + margin


def _mark(ax: Axes, number: "pd.Series[float]", y: float, lane: int) -> None:
    colour, distinct = COLOURS[lane], number["significant"]
    ax.plot([number["low"], number["high"]], [y, y], color=colour, linewidth=0.9, zorder=2)
    if not ax.get_autoscalex_on():
        left, right = ax.get_xlim()
        for edge, arrow, beyond in ((left, "<", number["low"] < left), (right, ">", number["high"] > right)):
            if beyond:
                ax.plot(edge, y, arrow, color=colour, markersize=3.6, clip_on=False, zorder=3)
        if number["gain"] < left:
            shown = f"{number['gain']:.0f}".replace("-", "−")
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.3}
            text = ax.annotate(shown, (left, y), (5, 0), textcoords="offset points", va="center", bbox=box)
            text.set(color=colour, fontsize=6)
    ax.plot(
        number["gain"],
        y,
        SHAPES[lane],
        color=colour if distinct else "white",
        markeredgecolor=colour,
        markeredgewidth=0.8,
        markersize=3.6,
        zorder=3,
    )
