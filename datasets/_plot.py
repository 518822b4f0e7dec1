"""A picture of a partition: how many images of which class each client has."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._partition import Partition
from fedprompt.harness.core.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL = 0.28  # inches per cell, so that a printed label fits beside its row
NAMED = 40  # more rows or columns than this get numbers instead of names


def plot_partition(partition: Partition, dataset: Dataset, path: Path) -> None:
    """Draw the train images per client and class, and per domain if there are several (PNG, PDF or SVG)."""
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
        rows = [np.bincount(np.asarray(groups)[part], minlength=len(names)) for part in partition.train]
        _heat_map(ax, np.array(rows), what, names, partition.unseen)
    figure.suptitle(f"{dataset.name}: train images of {partition.num_clients} clients", fontsize=10)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"cannot write the picture {path}: {error.strerror}") from error


def _heat_map(ax: "Axes", counts: np.ndarray, what: str, names: tuple[str, ...], unseen: tuple[int, ...]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    clients, columns = counts.shape
    # A single hue reads the same for colour-blind readers and in grey; white is left for cells without images.
    shades = LinearSegmentedColormap.from_list("shades", ["#d6e6f4", "#4292c6", "#08306b"])
    image = ax.imshow(np.ma.masked_equal(counts, 0), cmap=shades, vmin=0, vmax=counts.max(), aspect="auto")
    ax.figure.colorbar(image, ax=ax, label="train images", shrink=0.8)
    if counts.size <= 200:
        for (row, column), count in np.ndenumerate(counts):
            shade = "white" if count > 0.5 * counts.max() else "black"
            ax.text(column, row, str(count) if count else "·", ha="center", va="center", fontsize=6, color=shade)
    if columns <= NAMED:
        ax.set_xticks(range(columns), [name.replace("_", " ") for name in names], rotation=60, ha="right")
        ax.set_xlabel(what)
    else:
        ax.set_xlabel(f"{what} (number)")
    if clients <= NAMED:
        ax.set_yticks(range(clients), [f"{k} unseen" if k in unseen else str(k) for k in range(clients)])
    ax.set_ylabel("client")
    ax.tick_params(labelsize=7)
