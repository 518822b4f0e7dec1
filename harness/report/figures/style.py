"""How every figure looks: one look per row of the tables, sizes for print, files that do not change between runs."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedprompt.harness.running.suite import Row
from fedprompt.methods import registry

# Okabe and Ito's colours, which colour-blind people can distinguish; their yellow is too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "*", "h", "d")
LARGER = {"*": 1.7, "X": 1.25, "P": 1.25, "p": 1.2, "d": 1.3, "h": 1.15, "D": 0.85}  # for equal weight to the eye
STYLES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (5, 1, 1, 1, 1, 1)))
GREY, PALE = "#666666", "#c4c4c4"

PAGE, COLUMN = 7.0, 3.4  # inches: the width of a page and of one of its two columns
PNG_DPI = 200
SETTINGS: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titley": 1.0,  # no ticks are above, so nothing needs to be measured for it
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "lines.markeredgewidth": 0.3,
    "legend.frameon": False,
    "figure.constrained_layout.w_pad": 0.06,
    "text.hinting": "none",  # text is as wide in PNG, where the layout is made, as in PDF
    "pdf.fonttype": 42,  # fonts go into the file as outlines that any printer and editor knows
}


@dataclass(frozen=True)
class Look:
    """What makes a row recognisable; the marker alone tells the first thirteen apart."""

    colour: str
    marker: str
    line: Any

    def drawn(self, size: float = 4.0, line: bool = True) -> dict[str, Any]:
        """Arguments of `plot`, `errorbar` and `Line2D`."""
        return {
            "color": self.colour,
            "marker": self.marker,
            "markersize": size * LARGER.get(self.marker, 1.0),
            "markeredgecolor": "white",
            "linestyle": self.line if line else "none",
        }


@dataclass(frozen=True)
class DrawnFigure:
    """A figure that is drawn but not yet written; ``name`` is that of its files, without the ending."""

    name: str
    title: str
    caption: str
    figure: Figure


def looks(rows: Sequence[Row]) -> dict[str, Look]:
    """By the row's key. A method looks the same in every suite, whatever else is shown; variants take what is left."""
    known = registry().names()
    order = [*known, *(row.key for row in rows if row.key not in known)]
    # 7 colours and 13 markers are 91 pairs; a line style that changes with every turn of the markers tells the first 65
    # apart without colour.
    return {
        key: Look(COLOURS[i % 7], MARKERS[i % 13], STYLES[i // 13 % len(STYLES)])
        for i, key in enumerate(dict.fromkeys(order))
    }


def distinct_colours(row_looks: Mapping[str, Look], keys: Collection[str]) -> dict[str, Look]:
    """``row_looks`` in which no two of ``keys`` share a colour while some are free; the first to have one keeps it."""
    changed, used = dict(row_looks), set[str]()
    for key in keys:
        if changed[key].colour in used:
            free = [colour for colour in COLOURS if colour not in used | {row_looks[other].colour for other in keys}]
            changed[key] = replace(changed[key], colour=next(iter(free), changed[key].colour))
        used.add(changed[key].colour)
    return changed


@contextmanager
def print_style() -> Iterator[None]:
    """The settings of matplotlib for figures that are drawn inside it."""
    with matplotlib.rc_context(SETTINGS):
        yield


def panels(count: int, height: float = 2.1, **shared: Any) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` panels, two or three in a row across the page; a single one is as wide as a column."""
    across = 2 if count == 4 else min(count, 3)
    down = -(-count // across)
    figure = Figure(figsize=(COLUMN if count == 1 else PAGE, height * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False, **shared).flatten().tolist()
    for ax in axes[count:]:
        ax.remove()
    return figure, axes[:count]


def label_y(ax: Axes, text: str) -> None:
    """Only in the first panel of a row, because all of them show the same quantity."""
    place = ax.get_subplotspec()
    if place is not None and place.is_first_col():
        ax.set_ylabel(text)


def legend(
    figure: Figure, rows: Mapping[str, str], row_looks: Mapping[str, Look], lines: bool = True, others: str = ""
) -> None:
    """Below all panels: titles of ``rows`` (by key), in as many columns as the figure's width has room for.

    ``others`` names what is drawn as pale lines.
    """
    handles = [Line2D([], [], label=title, **row_looks[key].drawn(line=lines)) for key, title in rows.items()]
    handles += [Line2D([], [], label=others, color=PALE, linewidth=0.7)] if others else []
    titles = [str(handle.get_label()) for handle in handles]
    width, height = figure.get_size_inches()
    columns = next(n for n in range(len(titles), 0, -1) if n == 1 or _legend_width(titles, n) <= width)
    figure.set_size_inches(width, height + 0.16 * -(-len(titles) // columns) + 0.05)
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=2.6, columnspacing=1.2)


def _legend_width(titles: list[str], columns: int) -> float:
    """In inches, roughly: the line, the gaps and the longest title of every column."""
    return sum(0.5 + 0.052 * max(map(len, column)) for column in np.array_split(titles, columns))


def save_figure(drawn: DrawnFigure, folder: Path) -> tuple[Path, Path]:
    """Write PNG and PDF, laid out once, with nothing in them that depends on the day.

    `Figure.savefig` would draw twice for each file, the first time only for the layout.
    """
    figure, png, pdf = drawn.figure, folder / f"{drawn.name}.png", folder / f"{drawn.name}.pdf"
    figure.set_dpi(PNG_DPI)
    canvas: Any = FigureCanvasAgg(figure)  # its methods have no types
    layout = figure.get_layout_engine()
    if layout is not None:
        layout.execute(figure)
    figure.set_layout_engine("none")
    canvas.print_png(png, metadata={"Software": None})
    canvas = FigureCanvasPdf(figure)
    canvas.print_pdf(pdf, metadata={"Creator": None, "Producer": None, "CreationDate": None})
    return png, pdf
