"""The ablation: differences against one row, paired, with their spread over seeds and over clients.

Two questions, two columns. How steady is the difference when partition, selection and initialisation change? The
difference of each seed, their mean and sample standard deviation. How sure is its sign over clients? A client's
accuracy is its mean over the reported rounds; differences are taken between the same client of the same seed, averaged
over seeds, and a t interval is put around the mean over clients. Clients weigh the same, and those that never took part
count as the cell's `never_sampled` says. The interval speaks about clients like these, not about further seeds.
"""

from collections.abc import Mapping
from typing import NamedTuple

import pandas as pd
from scipy import stats

from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.report.collect import METRICS
from fedprompt.harness.report.document import MISSING, Column, Entry, Grid, Note, ranked
from fedprompt.harness.report.tables import result, row_titles, signed, slug

CONFIDENCE = 0.95
NOTES = (
    Note("", "Difference: Average minus the reference's, in points, seed by seed; mean ± sample standard deviation."),
    Note(
        "",
        "95 % CI: t interval over clients of the paired difference (same seed, same client, mean over the reported "
        "rounds, then over seeds). It speaks about clients like these, not about further seeds.",
    ),
)


class Paired(NamedTuple):
    """The difference of one row against the reference of its setting, in points."""

    seeds: Mapping[int, float]  # the difference of each seed that both have finished
    clients: int  # how many the interval rests on
    low: float
    high: float

    @property
    def values(self) -> pd.Series:
        return pd.Series(list(self.seeds.values()), dtype=float)


def paired_differences(suite: Suite, results: pd.DataFrame, records: pd.DataFrame) -> dict[tuple[int, str], Paired]:
    """By number of the setting and key of the row; the reference itself has none."""
    found = {}
    for column, setting in enumerate(suite.settings):
        if setting.kind != "ablation" or not setting.reference:
            continue
        cells = results[(results["column"] == column) & (results["status"] == "finished")]
        averages = {str(key): part.set_index("seed")["average"] for key, part in cells.groupby("row")}
        accuracies = client_accuracies(suite, records[records["column"] == column], column)
        if setting.reference not in averages:
            continue
        for key in averages.keys() - {setting.reference}:
            by_seed = ((averages[key] - averages[setting.reference]) * 100).dropna()
            clients = _over_seeds(accuracies, key, setting.reference)
            found[column, key] = Paired(
                dict(zip(by_seed.index, by_seed, strict=True)), len(clients), *t_interval(clients)
            )
    return found


def client_accuracies(suite: Suite, records: pd.DataFrame, column: int) -> pd.DataFrame:
    """Each client's mean accuracy over the reported rounds; index (seed, client), a column a row's key."""
    setting = suite.settings[column]
    protocol = suite.cell(setting, setting.rows[0], suite.seeds[0]).protocol
    counted = records[~records["unseen"].astype(bool) & (records["samples"] == 0)]
    counted = counted[counted["round"] > protocol.rounds - protocol.last]
    if protocol.never_sampled == "exclude":
        counted = counted[counted["participated"].astype(bool)]
    return counted.pivot_table(index=["seed", "client"], columns="row", values="accuracy", aggfunc="mean")


def _over_seeds(accuracies: pd.DataFrame, key: str, reference: str) -> pd.Series:
    """The paired difference of each client in points, mean over the seeds that both rows have."""
    if key not in accuracies or reference not in accuracies:
        return pd.Series(dtype=float)
    difference = (accuracies[key] - accuracies[reference]).dropna() * 100
    return difference.groupby("client").mean()


def t_interval(values: pd.Series) -> tuple[float, float]:
    """The confidence interval of the mean; nothing is known from fewer than two values."""
    if len(values) < 2:
        return float("nan"), float("nan")
    half = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return float(values.mean() - half), float(values.mean() + half)


def with_paired(summary: pd.DataFrame, paired: Mapping[tuple[int, str], Paired]) -> pd.DataFrame:
    """The summary with the columns `paired_...` for rows of an ablation."""
    rows = [paired.get(key) for key in zip(summary["column"], summary["row"], strict=True)]
    nothing = float("nan")
    return summary.assign(
        paired_difference=[pair.values.mean() if pair else nothing for pair in rows],
        paired_std=[pair.values.std(ddof=1) if pair else nothing for pair in rows],
        paired_seeds=[len(pair.seeds) if pair else nothing for pair in rows],
        paired_low=[pair.low if pair else nothing for pair in rows],
        paired_high=[pair.high if pair else nothing for pair in rows],
        paired_clients=[pair.clients if pair else nothing for pair in rows],
    )


def ablation(suite: Suite, title: str, part: pd.DataFrame, paired: Mapping[tuple[int, str], Paired]) -> Grid:
    """Average, then the difference against the reference: over seeds, of each seed, over clients."""
    titles = row_titles(part)
    columns: list[Column] = []
    for column in part["column"].unique():
        setting = suite.settings[column]
        by_row = {number["row"]: number for _, number in part[part["column"] == column].iterrows()}
        averages = [result(by_row[key]) if key in by_row else Entry("") for key in titles]
        columns.append(Column(setting.label, METRICS["average"], ranked(averages)))
        if setting.reference:
            pairs = {key: paired.get((column, key)) for key in titles if key in by_row}
            columns += _difference_columns(setting.label, titles, setting.reference, pairs, len(suite.seeds))
    return Grid(slug(title), title, tuple(titles.values()), tuple(columns), corner="Variant", notes=NOTES)


def _difference_columns(
    label: str, titles: Mapping[str, str], reference: str, pairs: Mapping[str, Paired | None], seeds: int
) -> list[Column]:
    rows = []
    for key in titles:
        pair = pairs.get(key)
        if key not in pairs:
            rows.append([""] * 4)
        elif key == reference:
            rows.append(["reference", "", "", ""])
        elif pair is None or not pair.seeds:
            rows.append([MISSING] * 4)
        else:
            spread = "" if len(pair.seeds) < 2 else f"±{pair.values.std(ddof=1):.2f}"
            spread += "" if len(pair.seeds) == seeds else f" ({len(pair.seeds)}/{seeds})"
            interval = MISSING if pd.isna(pair.low) else f"{signed(pair.low)} to {signed(pair.high)}"
            each = ", ".join(map(signed, pair.seeds.values()))
            rows.append([signed(pair.values.mean()) + spread, each, interval, str(pair.clients)])
    heads = ("Difference", "Each seed", "95 % CI", "Clients")
    texts = zip(*rows, strict=True)
    return [Column(label, head, tuple(map(Entry, column))) for head, column in zip(heads, texts, strict=True)]
