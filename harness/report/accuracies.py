"""Accuracies of clients, for tables and figures alike: the one place that says which clients and rounds count."""

from collections.abc import Iterator, Sequence

import pandas as pd

from fedprompt.core.fields import build
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.measuring.evaluation import LOCAL
from fedprompt.harness.measuring.metrics import on_test_set
from fedprompt.harness.running.suite import Setting

ENTRY = ["column", "policy", "row"]  # what the seeds of one number share


def by_policy(frame: pd.DataFrame) -> Iterator[tuple[int, str, pd.DataFrame]]:
    """Number of the setting, policy and their lines, in the frame's order."""
    for (column, policy), part in frame.groupby(["column", "policy"], sort=False):
        yield int(str(column)), str(policy), part


def protocol_of(setting: Setting) -> Protocol:
    return build(Protocol, setting.protocol, "protocol")


def counted_records(
    settings: Sequence[Setting], records: pd.DataFrame, test_set: str = LOCAL, swept: bool = False
) -> pd.DataFrame:
    """The records that Average is the mean of: those of clients that train, at the method's own number of draws.

    ``test_set`` is each client's own images or one that all share; ``swept`` asks for other numbers of draws instead.
    Clients that had never taken part are left out where the setting's protocol excludes them.
    """
    right_draws = (records["samples"] > 0) == swept
    trained = on_test_set(records[~records["unseen"].astype(bool) & right_draws], test_set)
    excluding = [column for column, s in enumerate(settings) if protocol_of(s).never_sampled == "exclude"]
    return trained[trained["participated"].astype(bool) | ~trained["column"].isin(excluding)]


def reported_records(settings: Sequence[Setting], records: pd.DataFrame) -> pd.DataFrame:
    """The records of the rounds whose mean is reported."""
    protocols = [protocol_of(setting) for setting in settings]
    pairs = zip(records["column"], records["round"], strict=True)
    is_reported = [protocols[column].reported(round_) for column, round_ in pairs]
    return records[pd.Series(is_reported, records.index, dtype=bool)]


def client_accuracies(settings: Sequence[Setting], records: pd.DataFrame, test_set: str = LOCAL) -> pd.DataFrame:
    """One row per column, policy, row, seed and counted client: its mean accuracy over the reported rounds.

    Clients without test data have no accuracy and no row.
    """
    counted = reported_records(settings, counted_records(settings, records, test_set))
    means = counted.groupby([*ENTRY, "seed", "client"], sort=False)["accuracy"].mean()
    return means.dropna().reset_index()


def swept_accuracies(settings: Sequence[Setting], records: pd.DataFrame) -> pd.DataFrame:
    """The same for every number of draws (`samples`) that was counted in the reported rounds."""
    counted = reported_records(settings, counted_records(settings, records, swept=True))
    means = counted.groupby([*ENTRY, "samples", "seed", "client"], sort=False)["accuracy"].mean()
    return means.dropna().reset_index()


def unseen_accuracies(records: pd.DataFrame) -> pd.DataFrame:
    """The same of clients that were kept out of training: their accuracy in the last state."""
    unseen = records[records["unseen"].astype(bool) & (records["samples"] == 0)]
    last = unseen[unseen["round"] == unseen.groupby([*ENTRY, "seed"])["round"].transform("max")]
    return last[[*ENTRY, "seed", "client", "accuracy"]].dropna(subset=["accuracy"])


def round_accuracies(settings: Sequence[Setting], records: pd.DataFrame) -> pd.DataFrame:
    """One row per column, policy, row, seed and evaluated round: the mean accuracy over the counted clients."""
    counted = counted_records(settings, records)
    return counted.groupby([*ENTRY, "seed", "round"], sort=False)["accuracy"].mean().reset_index()


def by_row(accuracies: pd.DataFrame, compared: str = "row") -> pd.DataFrame:
    """Accuracies of one column and policy as (seed, client) x ``compared``: what `inference` compares."""
    return accuracies.pivot(index=["seed", "client"], columns=compared, values="accuracy")
