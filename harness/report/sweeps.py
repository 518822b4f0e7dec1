"""What more draws bring: the mean of V predictions against a single one, paired by seed and client.

All V of a training are nested draws of it, so the differences are free of the luck of training.
"""

import re
from collections.abc import Mapping

import pandas as pd

from fedprompt.harness.report.accuracies import ENTRY, by_row, swept_accuracies
from fedprompt.harness.report.inference import Difference, paired
from fedprompt.harness.running.suite import Suite

METRIC = re.compile(r"average_samples_(\d+)")
ONE = "1"  # draw: what the others are compared with

# By number of the setting, policy, key of the row and V.
Sweeps = Mapping[tuple[int, str, str, int], Difference]


def draws(metric: str) -> int:
    """The number of draws V in a metric's name; 0 where it has none."""
    match = METRIC.fullmatch(metric)
    return int(match[1]) if match else 0


def compare_draws(suite: Suite, records: pd.DataFrame) -> Sweeps:
    """Every V against V = 1 in the V-sweeps of a suite; adjusted for the number of V."""
    columns = [column for column, setting in enumerate(suite.settings) if setting.kind == "vsweep"]
    swept = swept_accuracies(suite.settings, records[records["column"].isin(columns)])
    sweeps = {}
    for (column, policy, row), part in swept.groupby(ENTRY, sort=False):
        table = by_row(part, "samples").sort_index(axis=1)
        table.columns = table.columns.map(str)
        for v, difference in (paired(table, ONE) if ONE in table else {}).items():
            sweeps[int(str(column)), str(policy), str(row), int(v)] = difference
    return sweeps


def sweep_sentence(differences: Mapping[int, Difference], title: str) -> str:
    """What the largest V says against V = 1."""
    most = max(differences)
    change = differences[most]
    interval = f"95 % interval {change.low:.2f} to {change.high:.2f}"
    if change.significant:
        verb = "gains" if change.points > 0 else "loses"
        text = f"{title} {verb} {abs(change.points):.2f} points by averaging {most} draws instead of one ({interval})."
    else:
        text = f"{title} with {most} draws cannot be told from one draw ({change.points:+.2f} points, {interval})."
    return text.replace(" -", " −").replace("(-", "(−")
