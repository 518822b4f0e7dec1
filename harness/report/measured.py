"""Results with a measure in place of accuracy, so that tables of any measure are made as those of accuracy are."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from fedprompt.harness.measuring.convergence import still_moving
from fedprompt.harness.measuring.evaluation import LOCAL
from fedprompt.harness.measuring.measures import get_measure
from fedprompt.harness.report.collect import EXCLUDE, METRICS
from fedprompt.harness.report.comparisons import COMPARED, SHARED
from fedprompt.harness.report.values import ENTRY, reported_values, rule_of, unseen_values
from fedprompt.harness.running.suite import Suite

PLACE = [*ENTRY, "seed"]


def measured_results(suite: Suite, results: pd.DataFrame, records: pd.DataFrame, measure: str) -> pd.DataFrame:
    """``results`` with the measure in the metrics that are compared or swept, and none in the others.

    Finished entries without a value count as missing: their runs have no scores, or no predictions of these classes.
    `drift` is over the reported rounds, the only ones that have scores.
    """
    values = pd.concat([*_values(suite, records, measure), pd.DataFrame(columns=[*PLACE, "metric", "value"])])
    wide = values.pivot(index=PLACE, columns="metric", values="value").astype(float)
    others = results.drop(columns=[*METRICS, *EXCLUDE.values(), "drift", "moving"])
    measured = others.join(wide, on=PLACE).reindex(columns=results.columns)
    without = measured[list(METRICS)].isna().all(axis=1) & (measured["status"] == "finished")
    return measured.assign(status=measured["status"].mask(without, "missing"))


def _values(suite: Suite, records: pd.DataFrame, measure: str) -> Iterator[pd.DataFrame]:
    """The columns of `PLACE`, metric and value: means over reported rounds, and their drift."""
    kind = records["column"].map({column: setting.kind for column, setting in enumerate(suite.settings)})
    for name, metric in COMPARED.items():
        part = records[kind == name]
        if name == "unseen":
            last = unseen_values(part, measure).groupby(PLACE, sort=False)["value"].agg(rule_of(measure))
            yield last.reset_index().assign(metric=metric)
            continue
        rounds = reported_values(suite.settings, part, measure, name if name in SHARED else LOCAL)
        yield rounds.groupby(PLACE, sort=False)["value"].mean().reset_index().assign(metric=metric)
        finite = rounds.replace({"value": {np.inf: np.nan, -np.inf: np.nan}})
        curves = finite.set_index("round").groupby(PLACE, sort=False)["value"]
        drift = curves.agg(lambda curve: still_moving(curve).drift) * (get_measure(measure).scale / 100)
        yield drift.reset_index().assign(metric="drift")
    swept = reported_values(suite.settings, records[kind == "vsweep"], measure, swept=True)
    means = swept.groupby([*PLACE, "samples"], sort=False)["value"].mean().reset_index()
    metrics = "average_samples_" + means.pop("samples").astype(str)
    yield means.assign(metric=metrics)
