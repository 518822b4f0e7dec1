"""How well a score tells images of known classes from images of something else; no class is needed for that."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedprompt.core.errors import UserError

KEPT = 0.95  # of the images of known classes, at the threshold of `fpr95`


def auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """The probability that an image of a known class scores higher than another image; ties count half.

    Args:
        inside: scores of images of known classes, such as the probability of the predicted class.
        outside: scores of images that belong to no known class. Both must be finite and not empty.
    """
    known, other = _checked(inside, "inside"), np.sort(_checked(outside, "outside"))
    below, up_to = np.searchsorted(other, known, "left"), np.searchsorted(other, known, "right")
    return float((below + up_to).mean() / (2 * len(other)))


def fpr95(inside: ArrayLike, outside: ArrayLike) -> float:
    """The share of ``outside`` images that score at or above the threshold that keeps 95 % of the ``inside`` ones.

    The threshold is one of the inside scores, the largest that at least 95 % of them reach. Public code often exchanges
    the two sets for some scores, which gives another quantity under the same name.
    """
    known, other = np.sort(_checked(inside, "inside")), _checked(outside, "outside")
    lost = int((1 - KEPT) * len(known) + 1e-9)  # that may score below the threshold
    return float((other >= known[lost]).mean())


def _checked(scores: ArrayLike, name: str) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=float).ravel()
    if not len(values) or not np.isfinite(values).all():
        raise UserError(f"{name}: {len(values)} scores, of which all must be finite and at least one is needed.")
    return values
