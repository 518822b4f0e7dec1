"""Every row against its control, the best against the second: one comparison per setting and head policy.

The control is the method without prompts under the same reading of the head, or the row that the setting names. In an
ablation it is the reference.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from fedprompt.harness.measuring.evaluation import LOCAL
from fedprompt.harness.measuring.metrics import on_test_set
from fedprompt.harness.report.accuracies import by_policy, by_row, client_accuracies, unseen_accuracies
from fedprompt.harness.report.inference import PERCENTILES, Difference, Leader, deciles, distinguishable, holm, paired
from fedprompt.harness.report.power import Detectable, smallest_detectable
from fedprompt.harness.report.sweeps import Sweeps, draws
from fedprompt.harness.running.suite import Setting, Suite

NO_PROMPT = "head-tune"  # the method
COMPARED = {  # the metric, by kind
    **{"heterogeneity": "average", "unseen": "unseen_average", "ablation": "average"},
    **{"novel": "novel_average", "target": "target_average"},
}
SHARED = ("novel", "target")  # kinds that compare accuracies on the test set of this name, which all clients share
DECILES = [f"p{percent}" for percent in PERCENTILES]


@dataclass(frozen=True)
class Comparison:
    """What one setting says under one policy."""

    accuracies: pd.DataFrame  # (seed, client) x row
    controls: frozenset[str]  # several where methods are read under different policies, as in their papers
    differences: Mapping[str, Difference]  # of every row that has a control, adjusted for all of them
    leader: Leader | None  # among rows that have all seeds
    detectable: Mapping[str, Detectable]  # by row


Comparisons = Mapping[tuple[int, str], Comparison]  # by number of the setting and policy, as it is listed


def compare_rows(suite: Suite, results: pd.DataFrame, records: pd.DataFrame) -> Comparisons:
    """Of every setting and policy that has records, V-sweeps apart."""
    kinds = pd.Series({column: setting.kind for column, setting in enumerate(suite.settings)}, dtype=object)
    kind_of_record = records["column"].map(kinds)
    trained = client_accuracies(suite.settings, records[kind_of_record.isin(["heterogeneity", "ablation"])])
    unseen = unseen_accuracies(records[kind_of_record == "unseen"])
    shared = [client_accuracies(suite.settings, records[kind_of_record == kind], kind) for kind in SHARED]
    comparisons = {}
    for part in (trained, unseen, *shared):
        for column, policy, accuracies in by_policy(part):
            entries = results[(results["column"] == column) & (results["policy"] == policy)]
            setting, table = suite.settings[column], by_row(accuracies)
            table = table[[row.key for row in setting.rows if row.key in table]]
            test_set = setting.kind if setting.kind in SHARED else LOCAL
            images = int(on_test_set(records[records["column"] == column], test_set)["total"].median())
            comparisons[column, policy] = _comparison(setting, table, entries, images)
    return comparisons


def _comparison(setting: Setting, table: pd.DataFrame, entries: pd.DataFrame, test_images: int) -> Comparison:
    families = list(_families(setting, table, dict(zip(entries["row"], entries["reading"], strict=True))))
    count = sum(len(rows) - 1 for _, rows in families)
    differences: dict[str, Difference] = {}
    detectable: dict[str, Detectable] = {}
    for control, rows in families:
        differences |= paired(table[rows], control)
        if len(rows) > 1:
            limit = smallest_detectable(table[rows], control, count, test_images)
            detectable |= dict.fromkeys(rows, limit)
    adjusted = holm([difference.p for difference in differences.values()])
    differences = {
        row: replace(difference, adjusted=p) for (row, difference), p in zip(differences.items(), adjusted, strict=True)
    }
    finished = (entries["status"] == "finished").groupby(entries["row"]).all()
    complete = [row for row in table if finished.get(row, False)]
    controls = frozenset(control for control, _ in families)
    return Comparison(table, controls, differences, distinguishable(table[complete]), detectable)


def _families(setting: Setting, table: pd.DataFrame, readings: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Each control with the rows that it is compared with, itself included."""
    keys = [str(row) for row in table]
    if setting.kind == "ablation":
        if setting.reference in keys:
            yield setting.reference, keys
        return
    if setting.control:
        if setting.control in keys:
            yield setting.control, keys
        return
    plain = [row.key for row in setting.rows if row.method == NO_PROMPT and not row.params]
    for reading in dict.fromkeys(readings[row] for row in keys):
        rows = [row for row in keys if readings[row] == reading]
        control = next((row for row in plain if row in rows), None)
        if control is not None:
            yield control, rows


def with_gains(summary: pd.DataFrame, comparisons: Comparisons, sweeps: Sweeps) -> pd.DataFrame:
    """The summary with gains over the control, deciles over clients, and whether a row leads its column for certain.

    They belong to the metric that is compared; other metrics have none. An ablation has no gains, but differences from
    its reference (`ablation.with_paired`). The gain of a V-sweep is that over a single draw.
    """
    numbers = summary.to_dict("records")
    return summary.assign(**pd.DataFrame([_gain(number, comparisons, sweeps) for number in numbers]))


def _gain(number: Mapping[Any, Any], comparisons: Comparisons, sweeps: Sweeps) -> dict[str, object]:
    row, kind, nan = str(number["row"]), str(number["kind"]), float("nan")
    numbers = ("gain", "gain_low", "gain_high", "gain_p_adjusted", "smallest_detectable", *DECILES)
    values: dict[str, object] = {**dict.fromkeys(numbers, nan), "control": False, "leads": False}
    if kind == "vsweep":
        swept = sweeps.get((number["column"], number["policy"], row, draws(str(number["metric"]))))
        return values | (_edges(swept) if swept else {})
    comparison = comparisons.get((number["column"], number["policy"]))
    if comparison is None or row not in comparison.accuracies or number["metric"] != COMPARED.get(kind):
        return values
    leader, difference = comparison.leader, comparison.differences.get(row)
    values |= {"leads": leader is not None and leader.distinguishable and leader.best == row}
    values |= {str(name): value for name, value in deciles(comparison.accuracies[[row]]).loc[row].items()}
    if row in comparison.detectable:
        values["smallest_detectable"] = comparison.detectable[row].points
    if kind == "ablation":
        return values
    values["control"] = row in comparison.controls
    return values | (_edges(difference) if difference else {})


def _edges(difference: Difference) -> dict[str, object]:
    return {
        "gain": difference.points,
        "gain_low": difference.low,
        "gain_high": difference.high,
        "gain_p_adjusted": difference.adjusted,
    }
