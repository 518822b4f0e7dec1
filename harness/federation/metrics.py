"""From per-client records to the numbers of a table.

Order matters: the minimum over clients is taken inside a round, then the mean over rounds, then the mean over seeds.
"""

from collections.abc import Iterable

import pandas as pd

from fedprompt.harness.federation.evaluation import Record


def records_frame(records: Iterable[Record]) -> pd.DataFrame:
    return with_accuracy(pd.DataFrame(list(records), columns=list(Record.__dataclass_fields__)))


def with_accuracy(frame: pd.DataFrame) -> pd.DataFrame:
    """Records with the share of correct predictions; none where a client has no test data."""
    return frame.assign(accuracy=frame["correct"] / frame["total"].where(frame["total"] > 0))


def per_round(records: pd.DataFrame, exclude_never_sampled: bool = False) -> pd.DataFrame:
    """Average and Worst Local of each evaluated round, over the clients that train; index is the round."""
    rows = records[~records["unseen"] & (records["samples"] == 0)]
    if exclude_never_sampled:
        rows = rows[rows["participated"]]
    accuracy = rows.groupby("round")["accuracy"]
    return pd.DataFrame({"average": accuracy.mean(), "worst_local": accuracy.min()})


def summarise(records: pd.DataFrame, rounds: int, last: int, never_sampled: str) -> dict[str, float]:
    """What a cell reports: means over the last ``last`` rounds (all of them where there are fewer)."""
    first = max(1, rounds - last + 1)
    counted = records[records["round"] >= first]
    default = per_round(counted, exclude_never_sampled=never_sampled == "exclude")
    excluded = per_round(counted, exclude_never_sampled=True)
    if list(default.index) != list(range(first, rounds + 1)):
        raise ValueError(f"rounds {first} to {rounds} must all be evaluated, found {list(default.index)}")
    final = records[(records["round"] == rounds) & (records["samples"] == 0)]
    unseen = final[final["unseen"]]
    summary = {
        "average": float(default["average"].mean()),
        "worst_local": float(default["worst_local"].mean()),
        "average_exclude": float(excluded["average"].mean()),
        "worst_local_exclude": float(excluded["worst_local"].mean()),
        "rounds_counted": float(rounds - first + 1),
        "never_sampled": float((~final[~final["unseen"]]["participated"]).sum()),
    }
    for samples, rows in counted[counted["samples"] > 0].groupby("samples"):
        swept = per_round(rows.assign(samples=0), exclude_never_sampled=never_sampled == "exclude")
        summary[f"average_samples_{samples}"] = float(swept["average"].mean())
    if len(unseen):
        summary["unseen_average"] = float(unseen["accuracy"].mean())
    return summary
