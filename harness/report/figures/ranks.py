"""The critical-difference diagram: mean ranks on a line, bars over rows without a significant difference."""

from collections.abc import Iterator, Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from fedprompt.harness.report.figures.style import GREY, PAGE, DrawnFigure
from fedprompt.harness.report.ranks import MeanRanks

LINE = 0.17  # inches between two labels, or two bars
SIDE = 0.27  # share of the width that labels have on each side


def figures_ranks(ranks: MeanRanks, titles: Mapping[str, str] | None = None) -> Iterator[DrawnFigure]:
    """One diagram; none where there are too few settings."""
    if not ranks.enough:
        return
    caption = (
        f"Mean ranks over {ranks.settings} settings (1 is best). Bars join methods without a significant "
        f"difference at 5 % (Nemenyi's test, critical difference CD = {ranks.critical_difference:.2f}). {ranks.verdict}"
    )
    yield DrawnFigure("critical-difference", "Mean ranks over settings", caption, _diagram(ranks, titles or {}))


def _diagram(ranks: MeanRanks, titles: Mapping[str, str]) -> Canvas:
    """In units of lines downwards from the axis, so that text keeps its distance whatever the number of rows."""
    count = len(ranks.ranks)
    below = len(ranks.groups) + (count + 1) // 2 + 1
    canvas = Canvas(figsize=(PAGE, LINE * (below + 4)), layout="constrained")
    ax = canvas.subplots()
    reach = (count - 1) * SIDE / (1 - 2 * SIDE)
    ax.set(xlim=(1 - reach, count + reach), ylim=(below, -4))
    ax.axis("off")
    _axis(ax, count, ranks.critical_difference)
    for line, group in enumerate(ranks.groups, start=1):
        ends = [ranks.ranks[group[0]], ranks.ranks[group[-1]]]
        ax.plot(ends, [line - 0.2] * 2, color="black", linewidth=2.5, solid_capstyle="butt", label="_bar")
    first = len(ranks.groups) + 1
    for place, (row, rank) in enumerate(ranks.ranks.items()):
        left = place < (count + 1) // 2
        line = first + (place if left else count - 1 - place)
        end, outwards, align = (1, -reach, "right") if left else (count, reach, "left")
        ax.plot([rank, rank, end + 0.04 * outwards], [0, line, line], color=GREY, linewidth=0.7)
        name = titles.get(str(row), str(row))
        text = f"{name}  {rank:.2f}" if left else f"{rank:.2f}  {name}"
        ax.text(end + 0.07 * outwards, line, text, ha=align, va="center", fontsize=7)
    return canvas


def _axis(ax: Axes, count: int, critical: float) -> None:
    ax.plot([1, count], [0, 0], color="black", linewidth=0.8)
    for rank in range(1, count + 1):
        ax.plot([rank, rank], [0, -0.4], color="black", linewidth=0.8)
        ax.text(rank, -0.6, str(rank), ha="center", va="bottom", fontsize=7)
    ax.plot([1, 1 + critical], [-2.4] * 2, "|-", color="black", linewidth=0.8, markersize=4)
    ax.text(1 + critical / 2, -2.6, f"CD = {critical:.2f}", ha="center", va="bottom", fontsize=7)
