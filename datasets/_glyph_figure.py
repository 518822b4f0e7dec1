"""The picture of the embedded data: ``python -m fedprompt.datasets._glyph_figure docs/glyphs.png``."""

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets.glyphs import SEEN_STYLES, glyph_100, glyph_domains, glyph_pretrain

GAP = 3  # white pixels between images


def sheet(images: np.ndarray, columns: int) -> np.ndarray:
    """Images (n, 3, side, side) as one picture, row by row."""
    side = images.shape[-1]
    rows = len(images) // columns
    page = np.full((rows * (side + GAP) - GAP, columns * (side + GAP) - GAP, 3), 255, np.uint8)
    for i, image in enumerate(images[: rows * columns]):
        y, x = (i // columns) * (side + GAP), (i % columns) * (side + GAP)
        page[y : y + side, x : x + side] = image.transpose(1, 2, 0)
    return page


def one_of_each(data: Dataset, labels: range, domain: int, skip: int = 0) -> np.ndarray:
    """One training image of each class in one style: the one after the first ``skip``."""
    return np.stack([data.images[(data.labels == k) & (data.domains == domain)][skip] for k in labels])


def show(axes: Axes, page: np.ndarray, title: str) -> None:
    """Draw a page of images without ticks or frame."""
    axes.imshow(page, interpolation="nearest")
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def figure() -> Figure:
    """One image of every class (or of every tenth) of the three sets, in each of their styles."""
    domains, hundred, pretrain = glyph_domains(), glyph_100(), glyph_pretrain()
    canvas = Figure(figsize=(9.6, 5.0), layout="constrained")
    left, right = canvas.subfigures(1, 2, width_ratios=[1.18, 1], squeeze=False)[0]
    top, bottom = left.subplots(2, 1, height_ratios=[6, 3])
    styles = range(len(domains.domain_names))
    show(
        top,
        sheet(np.concatenate([one_of_each(domains, range(10), k, skip=2) for k in styles]), 10),
        "(a) glyph-domains: 10 classes, 6 styles",
    )
    step = domains.image_size + GAP
    names = [name if name in SEEN_STYLES else f"{name}*" for name in domains.domain_names]
    top.set_yticks([step * k + domains.image_size / 2 for k in styles], names, fontsize=8)
    top.tick_params(length=0)
    show(
        bottom,
        sheet(one_of_each(pretrain, range(0, 300, 10), 0), 10),
        f"(b) glyph-pretrain: {pretrain.num_classes} other classes, print only",
    )
    show(right.subplots(), sheet(one_of_each(hundred, range(100), 0), 10), "(c) glyph-100: 100 classes")
    canvas.supxlabel("* styles that the backbone micro-vit did not see in pretraining", fontsize=8)
    return canvas


if __name__ == "__main__":
    figure().savefig(Path(sys.argv[1]), dpi=150, pil_kwargs={"optimize": True})
