"""The ablation: differences from one row, paired, with their spread over seeds and their interval.

Two questions, two columns. How steady is the difference when partition, selection and initialisation change? The
difference of each seed, their mean and sample standard deviation. How sure is it? The interval of `inference.paired`,
which speaks about further clients and further seeds.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd

from fedprompt.harness.report.accuracies import by_policy
from fedprompt.harness.report.collect import METRICS, POLICY_HEADINGS
from fedprompt.harness.report.comparisons import Comparisons
from fedprompt.harness.report.document import MISSING, Column, Entry, Grid, Note
from fedprompt.harness.report.tables import mark_notes, result_entry, row_titles, signed, slug
from fedprompt.harness.running.suite import Suite

NOTES = (
    Note("", "Difference: Average minus the reference's, in points, seed by seed; mean ± sample standard deviation."),
    Note("", "95 % CI: of the paired difference (same seed, same client), over further clients and seeds like these."),
)


NO_INTERVAL = (0, float("nan"), float("nan"))


class PairedDifference(NamedTuple):
    """The difference of one row from the reference of its setting, in points."""

    by_seed: Mapping[int, float]  # of each seed that both have finished
    clients: int  # how many the interval rests on
    low: float
    high: float

    @property
    def values(self) -> pd.Series:
        return pd.Series(list(self.by_seed.values()), dtype=float)


PairedDifferences = Mapping[tuple[int, str, str], PairedDifference]  # by number of the setting, policy and key of row


def paired_differences(suite: Suite, results: pd.DataFrame, comparisons: Comparisons) -> PairedDifferences:
    """Those of all ablations; the reference itself has none."""
    paired = {}
    finished = results[(results["kind"] == "ablation") & (results["status"] == "finished")]
    for column, policy, cells in by_policy(finished):
        averages = {str(key): part.set_index("seed")["average"] for key, part in cells.groupby("row")}
        reference = suite.settings[column].reference
        comparison = comparisons.get((column, policy))
        for key in averages.keys() - {reference} if reference in averages else ():
            by_seed = ((averages[key] - averages[reference]) * 100).dropna()
            difference = comparison.differences.get(key) if comparison else None
            interval = (difference.clients, difference.low, difference.high) if difference else NO_INTERVAL
            by_seed_values = dict(zip(by_seed.index, by_seed, strict=True))
            paired[column, policy, key] = PairedDifference(by_seed_values, *interval)
    return paired


def with_paired(summary: pd.DataFrame, paired: PairedDifferences) -> pd.DataFrame:
    """The summary with the columns `paired_...` for rows of an ablation."""
    rows = [paired.get(key) for key in summary[["column", "policy", "row"]].itertuples(index=False, name=None)]
    nan = float("nan")
    return summary.assign(
        paired_difference=[pair.values.mean() if pair else nan for pair in rows],
        paired_std=[pair.values.std(ddof=1) if pair else nan for pair in rows],
        paired_seeds=[len(pair.by_seed) if pair else nan for pair in rows],
        paired_low=[pair.low if pair else nan for pair in rows],
        paired_high=[pair.high if pair else nan for pair in rows],
        paired_clients=[pair.clients if pair else nan for pair in rows],
    )


def ablation(suite: Suite, title: str, part: pd.DataFrame, paired: PairedDifferences) -> Grid:
    """Average, then the difference from the reference: over seeds, of each seed, with its interval."""
    titles = row_titles(part)
    several = part["policy"].nunique() > 1
    columns: list[Column] = []
    for column, policy, numbers in by_policy(part):
        setting = suite.settings[column]
        label = f"{setting.label}, {POLICY_HEADINGS[policy].lower()}" if several else setting.label
        by_row = {number["row"]: number for _, number in numbers.iterrows()}
        averages = tuple(result_entry(by_row[key]) if key in by_row else Entry("") for key in titles)
        columns.append(Column(label, METRICS["average"], averages))
        if setting.reference:
            pairs = {key: paired.get((column, policy, key)) for key in titles if key in by_row}
            columns += _difference_columns(label, titles, setting.reference, pairs, len(suite.seeds))
    explained = NOTES if any(suite.settings[column].reference for column in part["column"]) else ()
    notes = (*explained, *mark_notes(columns))
    return Grid(slug(title), title, tuple(titles.values()), tuple(columns), corner="Variant", notes=notes)


def _difference_columns(
    label: str, titles: Mapping[str, str], reference: str, pairs: Mapping[str, PairedDifference | None], seeds: int
) -> list[Column]:
    rows = []
    for key in titles:
        pair = pairs.get(key)
        if key not in pairs:
            rows.append([""] * 4)
        elif key == reference:
            rows.append(["reference", "", "", ""])
        elif pair is None or not pair.by_seed:
            rows.append([MISSING] * 4)
        else:
            spread = "" if len(pair.by_seed) < 2 else f"±{pair.values.std(ddof=1):.2f}"
            spread += "" if len(pair.by_seed) == seeds else f" ({len(pair.by_seed)}/{seeds})"
            interval = MISSING if pd.isna(pair.low) else f"{signed(pair.low)} to {signed(pair.high)}"
            each = ", ".join(map(signed, pair.by_seed.values()))
            rows.append([signed(pair.values.mean()) + spread, each, interval, str(pair.clients)])
    heads = ("Difference", "Each seed", "95 % CI", "Clients")
    texts = zip(*rows, strict=True)
    return [Column(label, head, tuple(map(Entry, column))) for head, column in zip(heads, texts, strict=True)]
