"""Pictures that say what they are, and a check of the listings that are made of them."""

from pathlib import Path

import numpy as np
from PIL import Image

from fedprompt.datasets._images import read_image
from fedprompt.datasets._listing import Listing


def paint(path: Path, label: int, domain: int = 0, test: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (label * 20 + 10, domain * 20 + 10, 200 if test else 50)).save(path)


def check(listing: Listing, size: int, official_split: bool = True) -> None:
    """Every row's image is the one painted for its label, domain and split."""
    assert len(listing.labels) == size
    for row, file in enumerate(listing.images):
        image = Image.fromarray(file) if isinstance(file, np.ndarray) else read_image(file)
        colour = np.asarray(image, int)[4, 4]
        assert (colour[0] // 20, colour[1] // 20) == (listing.labels[row], listing.domains[row])
        if official_split:
            assert (colour[2] > 125) == listing.is_test[row]
