"""How sure a table is: paired differences with intervals, adjusted for how many there are.

For a sceptical reader, in plain English. Two methods of a table see the same seeds and the same clients, so they are
compared client by client: the difference is taken within a client of a seed, averaged over the clients of the seed,
then over seeds. What of it is chance? Other clients would have given another mean, other seeds another training, other
test images another count. The interval speaks about further clients and further seeds like these; with one seed it
speaks about further clients only, and `Difference.seeds` says so.

The interval is a bootstrap over clients whose width is set by variance components for clients and seeds
(`components`). Resampling seeds themselves fails: two seeds, drawn with replacement, show half of their variance and
no tails, and the 95 % interval of the plain bootstrap held the truth in as few as 79 % of simulated tables. The
Student interval on two seeds is right and useless (four times too wide). Ours borrows the size of seed effects from
the other rows of the table; measured coverage is in ``docs/statistics.md``. What two seeds cannot give: whether *this*
method is more at the mercy of its seed than the others are. The 95 % interval of a method with seed effects twice those
of the rest may cover only 92 %.

P-values come from the same draws as intervals. They are adjusted by Holm's rule for the comparisons made in the table:
with 12 methods that all equal the control, fewer than one table in twenty calls any of them different. Intervals are
*not* adjusted, each holds for its row alone; a row is called different only by its adjusted p-value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedprompt.core.errors import unknown
from fedprompt.harness.report.components import (
    Array,
    Pool,
    components,
    error_draws,
    paired_array,
    pool_for,
    pool_rows,
    spread,
    wide,
)

LEVEL = 0.05
PERCENTILES = (10, 50, 90)


@dataclass(frozen=True)
class Difference:
    """One row against another, in points; NaN where fewer than two clients can be compared."""

    row: str
    reference: str
    points: float
    low: float  # of the 95 % interval
    high: float
    p: float  # two-sided, of this comparison alone
    adjusted: float  # the same, adjusted for all comparisons of the table
    seeds: int  # how many seeds both rows have; one means that the interval speaks about clients only
    clients: int

    @property
    def significant(self) -> bool:
        """At 5 %, after the adjustment."""
        return self.adjusted < LEVEL


@dataclass(frozen=True)
class Leader:
    """The best row of a table, and whether it may be set in bold."""

    best: str
    second: str
    difference: Difference  # best minus second, adjusted for the comparisons with the best

    @property
    def distinguishable(self) -> bool:
        """Whether the best is significantly better than the second."""
        return self.difference.significant


def paired(accuracies: pd.DataFrame, control: str) -> dict[str, Difference]:
    """Every other row against ``control``; p-values adjusted for these comparisons.

    ``accuracies`` has the index (seed, client) and one column per row with accuracies in [0, 1], of one setting and
    one head policy. NaN where a row lacks a seed or a client: a pair is compared on what both have.
    """
    if control not in accuracies:
        raise unknown("row", control, map(str, accuracies.columns))
    pool, table = pool_rows(accuracies), wide(accuracies)
    differences = [_difference(table, row, control, pool) for row in table if row != control]
    adjusted = holm([difference.p for difference in differences])
    return {each.row: replace(each, adjusted=p) for each, p in zip(differences, adjusted, strict=True)}


def distinguishable(accuracies: pd.DataFrame) -> Leader | None:
    """The best row against the second; none where there are fewer than two rows.

    Adjusted for the comparisons with the best, not for all pairs: the two that lead a table are closer to each other
    than two rows picked at random, so that picking them does not favour a difference.
    """
    order = ranking(accuracies)
    if len(order) < 2:
        return None
    best, second = order[:2]
    difference = _difference(wide(accuracies[[best, second]]), best, second, pool_rows(accuracies))
    adjusted = min(1.0, difference.p * (len(order) - 1))
    return Leader(best, second, replace(difference, adjusted=adjusted))


def ranking(accuracies: pd.DataFrame) -> list[str]:
    """Rows from best to worst by the mean over clients, then over seeds; rows without any value are left out."""
    means = accuracies.groupby(level=0).mean().mean().dropna().round(11)
    return [str(row) for row in means.sort_values(ascending=False, kind="stable").index]


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the given order, which control the chance of any false finding (Holm, 1979).

    NaN stays NaN and does not count.
    """
    values = np.asarray(p_values, dtype=float)
    order = np.argsort(values, kind="stable")[: np.count_nonzero(~np.isnan(values))]
    adjusted = np.full(len(values), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * (len(order) - np.arange(len(order)))), 1.0)
    return [float(value) for value in adjusted]


def deciles(values: "pd.Series[float]", scale: int = 100) -> tuple[float, ...]:
    """Values, as they are printed, that `PERCENTILES` of the clients of all seeds stay below."""
    return tuple(scale * values.quantile([percent / 100 for percent in PERCENTILES]))


def _difference(table: Mapping[str, Array], row: str, reference: str, pool: Pool) -> Difference:
    differences = paired_array(table[row], table[reference])
    seeds, clients = differences.shape
    nan = float("nan")
    if differences.size == 0:
        return Difference(row, reference, nan, nan, nan, nan, nan, seeds, clients)
    if not np.nan_to_num(differences).any():  # a copy: no draw may call it different
        return Difference(row, reference, 0.0, 0.0, 0.0, 1.0, 1.0, seeds, clients)
    parts = components(differences)
    size = spread(parts, pool_for(table[row], table[reference], pool))
    draws = float(parts.estimate) + error_draws(differences, float(size.error), float(size.freedom))
    low, high = np.quantile(draws, [LEVEL / 2, 1 - LEVEL / 2])
    p = 2 * (min(np.sum(draws <= 0), np.sum(draws >= 0)) + 1) / (len(draws) + 1)
    return Difference(
        row, reference, float(parts.estimate), float(low), float(high), min(float(p), 1.0), nan, seeds, clients
    )


def significant_rows(differences: Mapping[str, Difference], sign: int) -> list[Difference]:
    """Those that gain (``sign`` 1) or lose (-1) at the adjusted level, the largest first."""
    matching = [item for item in differences.values() if item.significant and np.sign(item.points) == sign]
    return sorted(matching, key=lambda item: -abs(item.points))
