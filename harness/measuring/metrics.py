"""From per-client records to the numbers of a table.

Order matters: the minimum over clients is taken inside a round, then the mean over rounds, then the mean over seeds.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import harmonic_mean

import pandas as pd

from fedprompt.harness.federation.policy import FINETUNED, metric_suffix
from fedprompt.harness.federation.protocol import reported_rounds
from fedprompt.harness.measuring.convergence import still_moving
from fedprompt.harness.measuring.evaluation import LOCAL, Record

COUNTS = ("correct", "total")
COMBINED = (LOCAL, "base", "novel")  # test sets of the harmonic mean


RECORD_COLUMNS = Record._fields


def records_frame(records: Iterable[Record]) -> pd.DataFrame:
    return pd.DataFrame(list(records), columns=list(RECORD_COLUMNS))


def with_accuracy(frame: pd.DataFrame) -> pd.DataFrame:
    """Records with the share of correct predictions; none where there are no test data."""
    return frame.assign(accuracy=frame["correct"] / frame["total"].where(frame["total"] > 0))


def per_client(records: pd.DataFrame) -> pd.DataFrame:
    """Records with the domains of each client added up, and its accuracy; all other columns tell clients apart."""
    keys = [name for name in records if name not in (*COUNTS, "domain", "accuracy")]
    sums = records.groupby(keys, sort=False, dropna=False)[list(COUNTS)].sum().reset_index()
    names = [name for name in records if name in (*keys, *COUNTS)]
    return with_accuracy(sums[names])


def trained_reading(records: pd.DataFrame) -> pd.DataFrame:
    """The records of the policy that clients trained under: those of the fine-tuned reading are left out."""
    return records[~records["policy"].str.endswith(FINETUNED)]


def finetuned_reading(records: pd.DataFrame) -> pd.DataFrame:
    return records[records["policy"].str.endswith(FINETUNED)]


def on_test_set(records: pd.DataFrame, name: str = LOCAL) -> pd.DataFrame:
    """The records of one test set; files from before there were several have no such column."""
    return records[records["test_set"] == name] if "test_set" in records else records


def per_round(records: pd.DataFrame, exclude_never_sampled: bool = False, test_set: str = LOCAL) -> pd.DataFrame:
    """Average and Worst Local of each evaluated round, over the clients that train; index is the round.

    ``records`` are those of one reading.
    """
    rows = on_test_set(records[~records["unseen"] & (records["samples"] == 0)], test_set)
    if exclude_never_sampled:
        rows = rows[rows["participated"]]
    accuracy = per_client(rows).groupby("round")["accuracy"]
    return pd.DataFrame({"average": accuracy.mean(), "worst_local": accuracy.min()})


def summarise(records: pd.DataFrame, rounds: int, last: int, never_sampled: str) -> dict[str, float]:
    """What a cell reports: means over the last ``last`` rounds (all of them where there are fewer).

    The keys of the trained policy; those of the fine-tuned reading, where there is one, end in `_ft`.
    """
    summary = _summarise(trained_reading(records), rounds, last, never_sampled)
    finetuned = finetuned_reading(records)
    if len(finetuned):
        suffix = metric_suffix(str(finetuned["policy"].iloc[0]))
        summary |= {key + suffix: value for key, value in _summarise(finetuned, rounds, last, never_sampled).items()}
    return summary


def _summarise(records: pd.DataFrame, rounds: int, last: int, never_sampled: str) -> dict[str, float]:
    """The summary of one reading."""
    reported, exclude = reported_rounds(rounds, last), never_sampled == "exclude"
    curve = per_round(records, exclude)
    counted = records[records["round"].isin(reported)]
    default, excluded = curve[curve.index.isin(reported)], per_round(counted, exclude_never_sampled=True)
    _require_rounds(list(default.index), list(reported))
    final = per_client(on_test_set(records[(records["round"] == rounds) & (records["samples"] == 0)]))
    unseen, convergence = final[final["unseen"]], still_moving(curve["average"])
    summary = {
        "average": float(default["average"].mean()),
        "worst_local": float(default["worst_local"].mean()),
        "average_exclude": float(excluded["average"].mean()),
        "worst_local_exclude": float(excluded["worst_local"].mean()),
        "rounds_counted": float(len(reported)),
        "never_sampled": float((~final[~final["unseen"]]["participated"]).sum()),
        "moving": float(convergence.moving),
    }
    if not math.isnan(convergence.drift):
        summary["drift"] = convergence.drift
    for samples, rows in counted[counted["samples"] > 0].groupby("samples"):
        swept = per_round(rows.assign(samples=0), exclude)
        summary[f"average_samples_{samples}"] = float(swept["average"].mean())
    if len(unseen):
        summary["unseen_average"] = float(unseen["accuracy"].mean())
    return summary | _shared_averages(counted, exclude)


def _shared_averages(records: pd.DataFrame, exclude: bool) -> dict[str, float]:
    """Means on the test sets that all clients share; with novel classes also harmonic means."""
    names = [str(name) for name in records["test_set"].unique()]
    curves = {name: per_round(records, exclude, name)["average"] for name in names}
    means = {name: float(curve.mean()) for name, curve in curves.items()}
    summary = {f"{name}_average": mean for name, mean in means.items() if name != LOCAL}
    if "novel" in means:
        rows = records[~records["unseen"] & (records["samples"] == 0)]
        by_client = per_client(rows).groupby(["client", "test_set"])["accuracy"].mean().unstack()
        summary |= {
            "harmonic_mean": harmonic_mean([means[name] for name in COMBINED]),
            "harmonic_mean_base_novel": harmonic_mean([means[name] for name in COMBINED[1:]]),
            "harmonic_mean_clients": float(by_client[list(COMBINED)].dropna().apply(harmonic_mean, axis=1).mean()),
        }
    return summary


def _require_rounds(evaluated: Sequence[int], wanted: Sequence[int]) -> None:
    if evaluated != wanted:
        raise ValueError(f"rounds {wanted[0]} to {wanted[-1]} must all be evaluated, found {evaluated}")
