"""Two recordings of the same cells, side by side: which differ by more than their seeds do."""

import numpy as np
import pandas as pd
from scipy import stats

from fedprompt.harness.report.inference import LEVEL, holm


def compare_runs(ours: "pd.Series[float]", theirs: "pd.Series[float]") -> pd.DataFrame:
    """One line per cell of either side, with ``differs`` where the difference of means exceeds the spread over seeds.

    Both are accuracies in [0, 1]; the last level of the index is the seed, the levels before it name the cell
    (setting, row, policy, metric). Seeds are not paired, for a change in the code may change what a seed draws. A cell
    of two or three seeds cannot tell its own spread, so the variance over seeds is averaged over all cells and both
    sides (each cell's own counts for as much as all others together); p-values are adjusted by Holm's rule. Values
    that agree exactly never differ.
    """
    cell = list(range(ours.index.nlevels - 1))
    sides = {
        name: (100 * side).groupby(level=cell).agg(["mean", "var", "count"])
        for name, side in (("ours", ours), ("theirs", theirs))
    }
    both = pd.concat(sides, axis=1)
    means, counts = both.xs("mean", axis=1, level=1), both.xs("count", axis=1, level=1).fillna(0)
    squares = both.xs("var", axis=1, level=1).fillna(0) * (counts - 1).clip(lower=0)
    difference = (means["ours"] - means["theirs"]).round(9)
    freedom = (counts - 1).clip(lower=0).sum(axis=1)
    error, known = _error(squares.sum(axis=1), freedom, counts)
    p = pd.Series(2 * stats.t.sf(np.abs(difference) / error, known), index=difference.index)
    p = p.mask(difference == 0, 1.0)
    adjusted = pd.Series(holm(p.to_list()), index=p.index)
    return pd.DataFrame(
        {
            "ours": means["ours"],
            "theirs": means["theirs"],
            "difference": difference,
            "error": error,
            "p": p,
            "adjusted": adjusted,
            "differs": adjusted < LEVEL,
        }
    )


def _error(
    squares: "pd.Series[float]", freedom: "pd.Series[float]", counts: pd.DataFrame
) -> tuple["pd.Series[float]", "pd.Series[float]"]:
    """Standard error of the difference of means, and its degrees of freedom; NaN where no cell has two seeds."""
    total = float(freedom.sum())
    if total == 0:
        nothing = pd.Series(np.nan, index=freedom.index)
        return nothing, nothing
    pooled = float(squares.sum()) / total
    weight = np.minimum(freedom, total - freedom)
    known = freedom + weight
    variance = (squares + weight * pooled) / known.where(known > 0)
    # A cell with one seed on each side has no spread of its own and takes that of all others.
    variance, known = variance.fillna(pooled), known.where(known > 0, total)
    return np.sqrt(variance * (1 / counts.where(counts > 0)).sum(axis=1, skipna=False)), known
