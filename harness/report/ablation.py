"""The ablation: differences from one row, paired, with their spread over seeds and over clients.

Two questions, two columns. How steady is the difference when partition, selection and initialisation change? The
difference of each seed, their mean and sample standard deviation. How sure is its sign over clients? Differences are
taken between the same client of the same seed (`accuracies.client_accuracies`), averaged over seeds, and a t interval
is put around their mean over clients. All clients weigh the same. The interval speaks about clients like these, not
about further seeds.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd
from scipy import stats

from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.report.accuracies import client_accuracies
from fedprompt.harness.report.collect import METRICS
from fedprompt.harness.report.document import MISSING, Column, Entry, Grid, Note, ranked
from fedprompt.harness.report.tables import result_entry, row_titles, signed, slug

CONFIDENCE = 0.95
NOTES = (
    Note("", "Difference: Average minus the reference's, in points, seed by seed; mean ± sample standard deviation."),
    Note(
        "",
        "95 % CI: t interval over clients of the paired difference (same seed, same client, mean over the reported "
        "rounds, then over seeds). It speaks about clients like these, not about further seeds.",
    ),
)


class PairedDifference(NamedTuple):
    """The difference of one row from the reference of its setting, in points."""

    by_seed: Mapping[int, float]  # of each seed that both have finished
    clients: int  # how many the interval rests on
    low: float
    high: float

    @property
    def values(self) -> pd.Series:
        return pd.Series(list(self.by_seed.values()), dtype=float)


PairedDifferences = Mapping[tuple[int, str], PairedDifference]  # by number of the setting and key of the row


def paired_differences(suite: Suite, results: pd.DataFrame, records: pd.DataFrame) -> PairedDifferences:
    """Those of all ablations; the reference itself has none."""
    studies = {
        column: setting.reference
        for column, setting in enumerate(suite.settings)
        if setting.kind == "ablation" and setting.reference
    }
    accuracies = client_accuracies(suite.settings, records[records["column"].isin(studies)])
    paired = {}
    for column, reference in studies.items():
        cells = results[(results["column"] == column) & (results["status"] == "finished")]
        averages = {str(key): part.set_index("seed")["average"] for key, part in cells.groupby("row")}
        if reference not in averages:
            continue
        clients = accuracies[accuracies["column"] == column]
        by_row = clients.pivot(index=["seed", "client"], columns="row", values="accuracy")
        for key in averages.keys() - {reference}:
            by_seed = ((averages[key] - averages[reference]) * 100).dropna()
            by_client = _client_differences(by_row, key, reference)
            paired[column, key] = PairedDifference(
                dict(zip(by_seed.index, by_seed, strict=True)), len(by_client), *t_interval(by_client)
            )
    return paired


def _client_differences(accuracies: pd.DataFrame, key: str, reference: str) -> pd.Series:
    """The paired difference of each client in points, mean over the seeds that both rows have."""
    if key not in accuracies or reference not in accuracies:
        return pd.Series(dtype=float)
    difference = (accuracies[key] - accuracies[reference]).dropna() * 100
    return difference.groupby("client").mean()


def t_interval(values: pd.Series) -> tuple[float, float]:
    """The confidence interval of the mean; nothing is known from fewer than two values."""
    if len(values) < 2:
        return float("nan"), float("nan")
    # Scaled here, because scipy answers nan where all values are equal.
    low, high = (
        edge * values.std(ddof=1) / len(values) ** 0.5 for edge in stats.t.interval(CONFIDENCE, len(values) - 1)
    )
    return float(values.mean() + low), float(values.mean() + high)


def with_paired(summary: pd.DataFrame, paired: PairedDifferences) -> pd.DataFrame:
    """The summary with the columns `paired_...` for rows of an ablation."""
    rows = [paired.get(key) for key in zip(summary["column"], summary["row"], strict=True)]
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
    """Average, then the difference from the reference: over seeds, of each seed, over clients."""
    titles = row_titles(part)
    columns: list[Column] = []
    for column in part["column"].unique():
        setting = suite.settings[column]
        by_row = {number["row"]: number for _, number in part[part["column"] == column].iterrows()}
        averages = [result_entry(by_row[key]) if key in by_row else Entry("") for key in titles]
        columns.append(Column(setting.label, METRICS["average"], ranked(averages)))
        if setting.reference:
            pairs = {key: paired.get((column, key)) for key in titles if key in by_row}
            columns += _difference_columns(setting.label, titles, setting.reference, pairs, len(suite.seeds))
    return Grid(slug(title), title, tuple(titles.values()), tuple(columns), corner="Variant", notes=NOTES)


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
