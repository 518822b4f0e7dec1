"""Every row against its control, the best against the second: one comparison per setting and head policy.

The control is the method without prompts under the same reading of the head, or the row that the setting names. In an
ablation it is the reference.
"""

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from fedprompt.harness.measuring.evaluation import LOCAL
from fedprompt.harness.measuring.measures import get_measure
from fedprompt.harness.measuring.metrics import on_test_set
from fedprompt.harness.report.inference import Difference, Leader, distinguishable, holm, paired
from fedprompt.harness.report.power import smallest_detectable
from fedprompt.harness.report.values import ACCURACY, ENTRY, by_policy, by_row, client_values, unseen_values
from fedprompt.harness.running.suite import Setting, Suite

NO_PROMPT = "head-tune"  # the method
COMPARED = {  # the metric, by kind
    **{"heterogeneity": "average", "unseen": "unseen_average", "ablation": "average"},
    **{"novel": "novel_average", "target": "target_average"},
}
SHARED = ("novel", "target")  # kinds that compare accuracies on the test set of this name, which all clients share
SWEPT = re.compile(r"average_samples_(\d+)")  # metrics of a V-sweep
ONE = "1"  # draw: what other numbers of draws are compared with


@dataclass(frozen=True)
class Comparison:
    """What one setting says under one policy."""

    values: pd.DataFrame  # (seed, client) x row
    controls: frozenset[str]  # several where methods are read under different policies, as in their papers
    differences: Mapping[str, Difference]  # of every row that has a control, adjusted for all of them
    leader: Leader | None  # among rows that have all seeds
    detectable: Mapping[str, float]  # the smallest difference that would be found, by row, as gains are printed


Comparisons = Mapping[tuple[int, str], Comparison]  # by number of the setting and policy, as it is listed
Sweeps = Mapping[tuple[int, str, str, int], Difference]  # by number of the setting, policy, key of the row and V


def compare_rows(suite: Suite, results: pd.DataFrame, records: pd.DataFrame, measure: str = ACCURACY) -> Comparisons:
    """Of every setting and policy that has records of ``measure``, V-sweeps apart.

    Clients have no part of a measure that is the worst of theirs, so there are none of it.
    """
    if get_measure(measure).across == "worst":
        return {}
    kind = records["column"].map({column: setting.kind for column, setting in enumerate(suite.settings)})
    trained = client_values(suite.settings, records[kind.isin(["heterogeneity", "ablation"])], measure)
    unseen = unseen_values(records[kind == "unseen"], measure)
    shared = [client_values(suite.settings, records[kind == name], measure, test_set=name) for name in SHARED]
    comparisons = {}
    for part in (trained, unseen, *shared):
        for column, policy, values in by_policy(part):
            entries = results[(results["column"] == column) & (results["policy"] == policy)]
            setting, table = suite.settings[column], by_row(values)
            table = table[[row.key for row in setting.rows if row.key in table]]
            images = _test_images(setting, records[records["column"] == column]) if measure == ACCURACY else 0
            comparisons[column, policy] = _comparison(setting, table, entries, images, measure)
    return comparisons


def _test_images(setting: Setting, records: pd.DataFrame) -> int:
    """Of the median client."""
    return int(on_test_set(records, setting.kind if setting.kind in SHARED else LOCAL)["total"].median())


def _comparison(
    setting: Setting, values: pd.DataFrame, entries: pd.DataFrame, test_images: int, measure: str
) -> Comparison:
    values = values[_finite(values)]
    table = _as_accuracies(values, measure)
    families = list(_families(setting, table, dict(zip(entries["row"], entries["reading"], strict=True))))
    count = sum(len(rows) - 1 for _, rows in families)
    differences: dict[str, Difference] = {}
    detectable: dict[str, float] = {}
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
    return Comparison(values, controls, differences, distinguishable(table[complete]), detectable)


def _finite(values: pd.DataFrame) -> list[Hashable]:
    """The columns without infinite values, of whose differences nothing can be said."""
    return [column for column in values if np.isfinite(values[column].fillna(0)).all()]


def _as_accuracies(values: pd.DataFrame, measure: str) -> pd.DataFrame:
    """What `inference` compares: higher is better, and a hundredth is one unit of a printed difference."""
    return values * (get_measure(measure).gain_scale / 100)


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


def draws(metric: str) -> int:
    """The number of draws V in a metric's name; 0 where it has none."""
    match = SWEPT.fullmatch(metric)
    return int(match[1]) if match else 0


def compare_draws(suite: Suite, records: pd.DataFrame, measure: str = ACCURACY) -> Sweeps:
    """Every V against V = 1 in the V-sweeps of a suite, adjusted for the number of V.

    All V of a training are nested draws of it, so the differences do not depend on how the training went.
    """
    columns = [column for column, setting in enumerate(suite.settings) if setting.kind == "vsweep"]
    sweeps: dict[tuple[int, str, str, int], Difference] = {}
    if get_measure(measure).across == "worst":
        return sweeps
    swept = client_values(suite.settings, records[records["column"].isin(columns)], measure, swept=True)
    for (column, policy, row), part in swept.groupby(ENTRY, sort=False):
        table = _as_accuracies(by_row(part, "samples").sort_index(axis=1), measure)
        table = table[_finite(table)]
        table.columns = table.columns.map(str)
        for v, difference in (paired(table, ONE) if ONE in table else {}).items():
            sweeps[int(str(column)), str(policy), str(row), int(v)] = difference
    return sweeps
