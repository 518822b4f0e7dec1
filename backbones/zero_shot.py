"""Zero-shot accuracy of a CLIP model, and the guard that stops a run whose towers cannot read the data."""

from collections.abc import Sequence

import numpy as np
import torch

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.errors import UserError
from fedprompt.datasets import Dataset

CHUNK = 256


@torch.no_grad()
def zero_shot_accuracy(
    clip: FrozenCLIP, dataset: Dataset, rows: np.ndarray, templates: Sequence[str] | None = None
) -> float:
    """The share of images ``rows`` nearest to their own class's text; ``templates`` default to the weights' own."""
    classes = clip.template_features(dataset.class_names, templates)
    right = 0
    for start in range(0, len(rows), CHUNK):
        chunk = rows[start : start + CHUNK]
        nearest = (clip.image_features(torch.from_numpy(np.array(dataset.images[chunk]))) @ classes.T).argmax(1).cpu()
        right += int((nearest == torch.from_numpy(dataset.labels[chunk])).sum())
    return right / len(rows)


def require_zero_shot(clip: FrozenCLIP, accuracy: float, num_classes: int) -> None:
    """Stop a run whose pretrained towers barely beat chance: something before the method is wrong.

    The bar is three times chance or, with so few classes that this cannot be asked, half-way from chance to certainty.
    Random weights, asked for by that word, pass.
    """
    chance = 1 / num_classes
    bar = min(3 * chance, (1 + chance) / 2)
    if clip.weights != "random" and accuracy < bar:
        raise UserError(
            f"{clip.name} classifies {100 * accuracy:.1f} % of the images without training, less than the "
            f"{100 * bar:.1f} % that sound weights must reach on {num_classes} classes (chance {100 * chance:.1f} %); "
            "check that labels and class names belong together, that images are normalised with the weights' mean "
            "and std, and that the model's GELU is the weights' (-quickgelu or not)."
        )
