"""Whether a run had settled when it ended, by one stated rule.

The last third of the rounds is cut into halves. The drift is the mean of the later half minus that of the earlier one.
A run is still moving if its drift exceeds both a threshold (1 point of accuracy) and twice its own standard error,
which comes from how much successive evaluations differ around their common trend, so that a steady rise is not taken
for noise. Where the last third has fewer than four evaluations, the last four are used. With fewer than two there is
nothing to say.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

THRESHOLD = 0.01  # of an accuracy in [0, 1]
LEAST_EVALUATIONS = 4
ERRORS = 2.0  # standard errors that a drift must exceed


@dataclass(frozen=True)
class Convergence:
    drift: (
        float  # points (hundredths of the curve's unit), positive where it rises; NaN with fewer than two evaluations
    )
    moving: bool
    evaluations: int  # of the last third, that this rests on


def still_moving(curve: "pd.Series[float]", threshold: float = THRESHOLD) -> Convergence:
    """Of a curve by evaluated round: Average in [0, 1], or a loss with a ``threshold`` in its own unit."""
    settled = curve.dropna().sort_index()
    last_third = settled[settled.index > settled.index.max() * 2 / 3] if len(settled) else settled
    window = last_third if len(last_third) >= LEAST_EVALUATIONS else settled.tail(LEAST_EVALUATIONS)
    values = window.to_numpy(dtype=float)
    if len(values) < 2:
        return Convergence(float("nan"), False, len(values))
    earlier, later = values[: len(values) // 2], values[-(len(values) // 2) :]  # an odd one in the middle is in neither
    drift = float(later.mean() - earlier.mean())
    moving = abs(drift) > threshold and abs(drift) > ERRORS * _noise(values) * np.sqrt(2 / len(later))
    return Convergence(100 * drift, bool(moving), len(values))


def _noise(values: NDArray[Any]) -> float:
    """Standard deviation of one evaluation around the trend; unknown, and taken for zero, with fewer than three."""
    steps = np.diff(values)
    return float(steps.std(ddof=1) / np.sqrt(2)) if len(steps) > 1 else 0.0
