"""Mean ranks of methods over settings, after Demšar (2006): Friedman's test and Nemenyi's critical difference.

Ranks ask another question than gains: not "by how much on this data" but "who is ahead wherever one looks". Settings
are the sample here, and the test takes them for independent. Columns of one data set (m = 1, 2, 6) are related, so
what it says about further data sets is too confident; with fewer than five settings it says nothing, and no diagram is
made.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from fedprompt.harness.report.inference import LEVEL

LEAST_SETTINGS = 5
LEAST_ROWS = 3  # two methods have only a sign test


@dataclass(frozen=True)
class MeanRanks:
    """Who is ahead over all settings, and whether that may be chance."""

    ranks: "pd.Series[float]"  # by row, best first; rank 1 is the best of a setting, ties share
    settings: int
    p: float  # of Friedman's test that all rows are alike; NaN without enough settings
    critical_difference: float  # of mean ranks, at 5 % for all pairs together; NaN without enough settings
    groups: tuple[tuple[str, ...], ...]  # rows, best first, without a significant difference; the largest such groups
    verdict: str  # one sentence

    @property
    def enough(self) -> bool:
        """Whether there are settings and rows enough for a test."""
        return not np.isnan(self.critical_difference)


def mean_ranks(table: pd.DataFrame) -> MeanRanks:
    """Of accuracies, rows x settings. Rows that lack a setting are left out: their mean would not compare."""
    complete = table.dropna()
    rows, settings = complete.shape
    ranks = complete.rank(ascending=False).mean(axis=1).sort_values(kind="stable")
    nan = float("nan")
    if settings < LEAST_SETTINGS:
        verdict = f"Mean ranks over {_count(settings, 'setting')} say nothing; it takes at least {LEAST_SETTINGS}."
        return MeanRanks(ranks, settings, nan, nan, (), verdict)
    if rows < LEAST_ROWS:
        verdict = f"Mean ranks need at least {LEAST_ROWS} rows that have all settings; here {_are(rows)}."
        return MeanRanks(ranks, settings, nan, nan, (), verdict)
    # Where all rows tie everywhere, the statistic is 0 / 0 and nothing speaks against equality.
    alike = bool((complete.rank().nunique() == 1).all())
    p = 1.0 if alike else float(stats.friedmanchisquare(*complete.to_numpy()).pvalue)
    critical = critical_difference(rows, settings)
    groups = _groups(ranks, critical)
    return MeanRanks(ranks, settings, p, critical, groups, _verdict(ranks, settings, p, groups))


def critical_difference(rows: int, settings: int) -> float:
    """Nemenyi's: two mean ranks further apart than this differ, at 5 % over all pairs."""
    quantile = stats.studentized_range.isf(LEVEL, rows, np.inf) / np.sqrt(2)
    return float(quantile * np.sqrt(rows * (rows + 1) / (6 * settings)))


def _groups(ranks: "pd.Series[float]", critical: float) -> tuple[tuple[str, ...], ...]:
    """For each row, those from it on that are within the difference; groups inside another one are left out."""
    values = ranks.to_numpy()
    ends = [int(np.searchsorted(values, value + critical, side="right")) for value in values]
    spans = [(i, end) for i, end in enumerate(ends) if end - i > 1 and (i == 0 or end > ends[i - 1])]
    return tuple(tuple(str(row) for row in ranks.index[start:end]) for start, end in spans)


def _verdict(ranks: "pd.Series[float]", settings: int, p: float, groups: tuple[tuple[str, ...], ...]) -> str:
    over = f"over {settings} settings"
    if p >= LEVEL:
        return f"Mean ranks {over} show no significant difference between the {len(ranks)} rows (Friedman p = {p:.2f})."
    best = str(ranks.index[0])
    equals = next((len(group) - 1 for group in groups if best in group), 0)
    rest = (
        f"{_count(equals, 'other row')} {'does' if equals == 1 else 'do'} not differ significantly from it"
        if equals
        else "all others are behind"
    )
    return f"Mean ranks differ {over} (Friedman p {_p(p)}): {best} has the best, {ranks.iloc[0]:.1f}, and {rest}."


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"= {p:.3f}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _are(number: int) -> str:
    return "there is 1" if number == 1 else f"there are {number}"
