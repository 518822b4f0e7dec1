"""A picture of a partition: how many images of which class each client has."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedprompt.core.errors import UserError
from fedprompt.core.text import visible
from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._partition import Partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.image import AxesImage

CELL = 0.28  # inches per cell, so that a printed label fits next to its row
NAMED = 40  # more clients, classes or domains than this are numbered, not named
SHADES = ("#cfe1f2", "#4292c6", "#08306b")  # of one hue, which reads the same in grey; white is zero


def plot_partition(partition: Partition, dataset: Dataset, path: Path) -> None:
    """Draw how many train images of each class every client has, and of each domain if there are several.

    The ending of ``path`` chooses the format: PNG, PDF or SVG.
    """
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UserError(f"cannot draw to {str(path)!r}: the name must end in .png, .pdf or .svg")
    panels = [("class", dataset.labels, dataset.class_names)]
    if len(dataset.domain_names) > 1:
        panels.insert(0, ("domain", dataset.domains, dataset.domain_names))
    widths = [min(max(CELL * len(names), 1.6), 9.0) for _, _, names in panels]
    height = min(max(CELL * partition.num_clients, 1.6), 9.0)
    figure = Figure(figsize=(sum(widths) + 2.2 * len(panels), height + 1.8), layout="constrained", dpi=150)
    axes = figure.subplots(1, len(panels), width_ratios=widths, squeeze=False)[0]
    for ax, (what, groups, names) in zip(axes, panels, strict=True):
        counts = train_counts(partition, groups, len(names))
        norm = Normalize(0, counts.max())
        titles = [visible(name.replace("_", " ")) for name in names]
        image = heat_map(ax, counts, what, titles, norm, named=NAMED, written=200)
        if partition.num_clients <= NAMED:
            clients = range(partition.num_clients)
            ax.set_yticks(clients, [f"{k} unseen" if k in partition.unseen else str(k) for k in clients])
        ax.set_ylabel("client")
        ax.tick_params(labelsize=7)
        figure.colorbar(image, ax=ax, label="train images", shrink=0.8)
    title = visible(f"{dataset.name}: train images of {partition.num_clients} clients")
    figure.suptitle(title, fontsize=10, parse_math=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"cannot write the picture {path}: {error.strerror}") from error


def train_counts(partition: Partition, groups: Any, size: int) -> np.ndarray:
    """(clients, size): train images of every client in each group; ``groups`` numbers the group of every image."""
    return np.array([np.bincount(np.asarray(groups)[indices], minlength=size) for indices in partition.train])


def heat_map(
    ax: "Axes", counts: np.ndarray, what: str, names: Sequence[str], norm: "Normalize", *, named: int, written: int
) -> "AxesImage":
    """Draw counts (clients, groups) as shades, zero as white; returns the image, which a colour bar needs.

    Args:
        ax: where to draw.
        counts: such as :func:`train_counts` gives.
        what: what a column is, for its label: "class" or "domain".
        names: of the columns.
        norm: from counts to shades, the same for maps that are compared.
        named: up to so many columns carry their names; more are numbered.
        written: maps of up to so many cells show every count.
    """
    from matplotlib.colors import LinearSegmentedColormap

    columns, shades = counts.shape[1], LinearSegmentedColormap.from_list("shades", SHADES)
    image = ax.imshow(np.ma.masked_equal(counts, 0), cmap=shades, norm=norm, aspect="auto", interpolation="nearest")
    if counts.size <= written:
        for (row, column), count in np.ndenumerate(counts):
            shade = "white" if norm(count) > 0.45 else "black"
            ax.text(column, row, str(count or ""), ha="center", va="center", fontsize=6, color=shade)
    ax.grid(visible=False)
    ax.spines[:].set(visible=True, color="#666666")
    if columns <= named:
        ax.set_xticks(range(columns), names, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    ax.set_xlabel(what if columns <= named else f"{what} (number)")
    return image
