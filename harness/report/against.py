"""Your run compared with a published one, seed by seed: which numbers moved by more than the spread between seeds.

A cell that is computed again from the same code, data and seed gives the same digits; on another machine rounding may
flip a few images, which is far less than what another seed changes. So the yardstick is the spread between seeds of
the published run: a number differs if its mean over the seeds that both runs have moved by more than one standard
deviation between seeds, or one of the seeds by more than two. Nothing is tested, and nothing is adjusted for how many
numbers there are: with equal digits as the rule there is no chance to allow for.
"""

from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedprompt.core.errors import UserError
from fedprompt.harness.report.collect import METRICS
from fedprompt.harness.report.verified import published_records, published_results

COLUMN = ["table", "setting", "policy", "metric"]  # numbers that stand below one another
NUMBER = [*COLUMN, "title"]
ONE_SEED = 2.0  # spreads that a single seed may move by; the mean over seeds may move by one
FEW = 4  # degrees of freedom below which a column does not know its own spread
DIGITS = 9  # of points, beyond which adding up in another order shows
LISTED = 20  # differences that are listed one by one


class Verdict(NamedTuple):
    """The first line sums up; then one line per difference."""

    same: bool
    lines: tuple[str, ...]


def against(report: Path, folder: Path) -> Verdict:
    """Compare the finished cells of a report with those of a published run."""
    if not (folder / "cells.csv").exists():
        raise UserError(f"{folder} has no cells.csv; --against takes a folder such as results/reference/embedded.")
    ours, theirs = (accuracies(results) for results in (pd.read_csv(report / "cells.csv"), published_results(folder)))
    both = ours.merge(theirs, left_index=True, right_index=True, suffixes=("_ours", "_theirs"))
    if both.empty:
        raise UserError(f"no finished cell of the suite is among those of {folder}; run the suite first.")
    table = compare_runs(both["value_ours"], both["value_theirs"], spread(theirs, images_of(folder)))
    differing, equal = table[table["differs"]], int(table["equal"].sum())
    counts = f"{len(table)} numbers compared, {equal} equal to the last digit"
    if len(differing):
        verb = "differs" if len(differing) == 1 else "differ"
        summary = f"{len(differing)} of {len(table)} numbers {verb} from {folder} by more than the spread between seeds"
    elif equal < len(table):
        summary = f"same as {folder} within the spread between seeds, but not to the last digit"
    else:
        summary = f"same as {folder}"
    lines = [
        f"{summary}: {counts}, largest difference {table['difference'].abs().max():.2f} points.",
        *(_sentence(name, line) for name, line in differing.head(LISTED).iterrows()),
    ]
    if len(differing) > LISTED:
        lines.append(f"{len(differing) - LISTED} more numbers differ.")
    for column, what in (("code", "by other code than the published ones"), ("partition_hash", "on other partitions")):
        other = both[both[f"{column}_ours"] != both[f"{column}_theirs"]]
        if len(other):
            lines.append(f"{_numbers(other)} numbers were computed {what}.")
    for here, there, where in ((theirs, ours, "here"), (ours, theirs, "there")):
        missing = here.index.difference(there.index)
        if len(missing):
            lines.append(f"{_numbers(here.loc[missing])} numbers, or some of their seeds, are missing {where}.")
    return Verdict(differing.empty, tuple(lines))


def compare_runs(ours: "pd.Series[float]", theirs: "pd.Series[float]", spreads: "pd.Series[float]") -> pd.DataFrame:
    """One line per number, with ``differs`` where it moved by more than its seeds are spread.

    ``ours`` and ``theirs`` are percentages with the same index, of which the last level is the seed; ``spreads`` has
    one standard deviation between seeds per number, in points.
    """
    moved = (ours - theirs).round(DIGITS)
    numbers = list(ours.index.names[:-1])
    sides = pd.DataFrame({"ours": ours, "theirs": theirs, "difference": moved}).groupby(level=numbers, sort=False)
    table = sides.mean().assign(largest=moved.abs().groupby(level=numbers, sort=False).max())
    table["spread"] = spreads.reindex(table.index)
    differs = (table["difference"].abs() > table["spread"]) | (table["largest"] > ONE_SEED * table["spread"])
    return table.assign(equal=table["largest"] == 0, differs=differs)


def spread(published: pd.DataFrame, images: pd.DataFrame) -> "pd.Series[float]":
    """Standard deviation between seeds of every number, in points.

    Two or three seeds hardly know it, so a number's own variance is averaged with that of its column, or, where a
    column has few rows, with that of its metric in all columns. Where every number has one seed only, what other test
    images of the same number would change stands in. It is never less than what one image is worth.
    """
    values = published["value"].groupby(level=NUMBER, sort=False)
    variance, freedom = values.var().fillna(0), values.count() - 1
    pooled = _pooled(variance, freedom, COLUMN)
    pooled = pooled.where(freedom.groupby(level=COLUMN).transform("sum") >= FEW, _pooled(variance, freedom, ["metric"]))
    own = variance.where(freedom > 0, pooled)
    counted = _image_counts(published, images)
    share = values.mean() / 100
    by_images = 100 * (share * (1 - share) / counted) ** 0.5
    return (((own + pooled) / 2) ** 0.5).fillna(by_images).clip(lower=100 / counted)


def _pooled(variance: "pd.Series[float]", freedom: "pd.Series[int]", among: list[str]) -> "pd.Series[float]":
    """The mean variance of the numbers of one kind, weighted by their degrees of freedom; NaN where there are none."""
    total = freedom.groupby(level=among).transform("sum")
    return (variance * freedom).groupby(level=among).transform("sum") / total.where(total > 0)


def _image_counts(published: pd.DataFrame, images: pd.DataFrame) -> "pd.Series[float]":
    """How many test images the seeds of each number have: the smallest client's for Worst Local, else all clients'."""
    counts = published.join(images, on="cell")
    is_worst = counts.index.get_level_values("metric") == "worst_local"
    return counts["all"].where(~is_worst, counts["client"]).groupby(level=NUMBER, sort=False).min()


def images_of(folder: Path) -> pd.DataFrame:
    """Test images of each published cell: of all clients and of the smallest one, at one evaluation."""
    records = published_records(folder)
    evaluation = ["cell", "round", "policy", "samples", "test_set", "unseen"]
    clients = records.groupby([*evaluation, "client"])["total"].sum()
    clients = clients[clients > 0]
    totals = pd.DataFrame(
        {"all": clients.groupby(level=evaluation).sum(), "client": clients.groupby(level=evaluation).min()}
    )
    return totals.groupby(level="cell").min()


def accuracies(results: pd.DataFrame) -> pd.DataFrame:
    """Every reported accuracy of the finished cells in percent, by place, metric and seed."""
    finished = results[results["status"] == "finished"]
    metrics = [metric for metric in METRICS if metric in finished]
    kept = [*(name for name in NUMBER if name != "metric"), "seed", "cell", "code", "partition_hash"]
    long = finished.melt(kept, metrics, "metric", "value").dropna(subset=["value"])
    return long.assign(value=100 * long["value"].astype(float)).set_index([*NUMBER, "seed"])


def _numbers(lines: pd.DataFrame) -> int:
    return lines.groupby(level=NUMBER).ngroups


def _sentence(name: object, line: "pd.Series[float]") -> str:
    assert isinstance(name, tuple)
    table, setting, policy, metric, title = name
    where = f"{title}, {table}, {setting}, {policy}, {METRICS[metric]}"
    values = f"{line['ours']:.2f} here, {line['theirs']:.2f} there"
    moved = f"{line['difference']:+.2f} points, one seed by {line['largest']:.2f}"
    return f"differs: {where}: {values} ({moved}; the spread between seeds is {line['spread']:.2f})"
