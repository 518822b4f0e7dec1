"""Two recordings of the same cells, side by side: which differ by more than their seeds do."""

from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from fedprompt.harness.report.inference import LEVEL, holm


def compare_runs(ours: "pd.Series[float]", theirs: "pd.Series[float]") -> pd.DataFrame:
    """One line per cell of either side, with ``differs`` where the difference of means exceeds the spread over seeds.

    Both are accuracies in [0, 1]; the last level of the index is the seed, the levels before it name the cell
    (setting, row, policy, metric). Seeds are not paired, for a change in the code may change what a seed draws. A cell
    of two or three seeds cannot tell its own spread, so the variance over seeds is averaged over all cells and both
    sides (each cell's own counts for as much as all others together); p-values are adjusted by Holm's rule. Values
    that agree exactly never differ.
    """
    sides = {"ours": _over_seeds(ours), "theirs": _over_seeds(theirs)}
    both = pd.concat(sides, axis=1)
    means = pd.DataFrame({side: both[side, "mean"] for side in sides})
    counts = pd.DataFrame({side: both[side, "count"] for side in sides}).fillna(0)
    squares = sum(both[side, "squares"].fillna(0) for side in sides)
    difference = (means["ours"] - means["theirs"]).round(9)
    error, freedom = _error(squares, counts)
    p = pd.Series(2 * special.stdtr(freedom, -np.abs(difference) / error), index=difference.index)
    p = p.mask(difference == 0, 1.0)
    adjusted = pd.Series(holm(p.to_list()), index=p.index)
    columns = {"difference": difference, "error": error, "p": p, "adjusted": adjusted, "differs": adjusted < LEVEL}
    return means.assign(**columns)


def _over_seeds(accuracies: "pd.Series[float]") -> pd.DataFrame:
    """Mean in percent, number of seeds and sum of squares around the mean, one line per cell."""
    cells = (100 * accuracies).groupby(level=list(range(accuracies.index.nlevels - 1)))
    count = cells.count()
    return pd.DataFrame({"mean": cells.mean(), "count": count, "squares": cells.var().fillna(0) * (count - 1)})


def _error(squares: Any, counts: pd.DataFrame) -> tuple[Any, Any]:
    """Standard errors of differences of means, and their degrees of freedom; NaN where no cell has two seeds."""
    freedom = (counts - 1).clip(lower=0).sum(axis=1)
    total = freedom.sum()
    if total == 0:
        return np.nan, np.nan
    pooled = squares.sum() / total
    weight = np.minimum(freedom, total - freedom)
    known = (freedom + weight).replace(0, np.nan)
    # A cell with one seed on each side has no spread of its own and takes that of all others.
    variance = ((squares + weight * pooled) / known).fillna(pooled)
    return np.sqrt(variance * (1 / counts.replace(0, np.nan)).sum(axis=1, skipna=False)), known.fillna(total)
