"""Values of clients, for tables, sentences and figures alike: the one place that says which clients and rounds count.

Records have one line per entry, evaluated round, reading and client, and one column per measure, such as `accuracy`.
Whatever is compared or drawn comes from them through the functions below, which leave one `value` per client or round.
"""

from collections.abc import Iterator, Sequence

import pandas as pd

from fedprompt.core.fields import build
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.measuring.evaluation import LOCAL
from fedprompt.harness.measuring.measures import get_measure
from fedprompt.harness.measuring.metrics import on_test_set
from fedprompt.harness.running.suite import Setting

ENTRY = ["column", "policy", "row"]  # what the seeds of one number share
ACCURACY = "accuracy"  # the measure


def by_policy(frame: pd.DataFrame) -> Iterator[tuple[int, str, pd.DataFrame]]:
    """Number of the setting, policy and their lines, in the frame's order."""
    for (column, policy), part in frame.groupby(["column", "policy"], sort=False):
        yield int(str(column)), str(policy), part


def protocol_of(setting: Setting) -> Protocol:
    """The protocol that all cells of the setting follow."""
    return build(Protocol, setting.protocol, "protocol")


def client_values(
    settings: Sequence[Setting],
    records: pd.DataFrame,
    measure: str = ACCURACY,
    test_set: str = LOCAL,
    swept: bool = False,
) -> pd.DataFrame:
    """One line per column, policy, row, seed and client that trains: the mean of ``measure`` over the reported rounds.

    ``test_set`` is each client's own images or one that all share. With ``swept`` there is one line per number of draws
    (`samples`) that was evaluated besides the method's own. Clients without test data have no value and no line.
    """
    keys = [*ENTRY, *(["samples"] if swept else []), "seed", "client"]
    counted = _reported(settings, records, test_set, swept)
    return counted.groupby(keys, sort=False)[measure].mean().dropna().rename("value").reset_index()


def reported_values(
    settings: Sequence[Setting], records: pd.DataFrame, measure: str, test_set: str = LOCAL, swept: bool = False
) -> pd.DataFrame:
    """One line per column, policy, row, seed and reported round, with ``swept`` also per `samples`: clients combined.

    As the measure says, they are combined to their mean or to the worst of them.
    """
    keys = [*ENTRY, *(["samples"] if swept else []), "seed", "round"]
    clients = _reported(settings, records, test_set, swept).groupby(keys, sort=False)[measure]
    return clients.agg(rule_of(measure)).dropna().rename("value").reset_index()


def rule_of(measure: str) -> str:
    """How pandas combines the clients of a round; columns of pooled measures are made so that it is their mean."""
    known = get_measure(measure)
    worst = "min" if known.higher_is_better else "max"
    return worst if known.across == "worst" else "mean"


def unseen_values(records: pd.DataFrame, measure: str = ACCURACY) -> pd.DataFrame:
    """The same of clients that were kept out of training: their value in the last state."""
    unseen = records[records["unseen"].astype(bool) & (records["samples"] == 0)]
    last = unseen[unseen["round"] == unseen.groupby([*ENTRY, "seed"])["round"].transform("max")]
    return last[[*ENTRY, "seed", "client", measure]].rename(columns={measure: "value"}).dropna(subset=["value"])


def round_values(settings: Sequence[Setting], records: pd.DataFrame, measure: str = ACCURACY) -> pd.DataFrame:
    """One line per column, policy, row, seed and evaluated round: the mean of ``measure`` over clients that train."""
    counted = _counted([protocol_of(setting) for setting in settings], records)
    return counted.groupby([*ENTRY, "seed", "round"], sort=False)[measure].mean().rename("value").reset_index()


def _reported(settings: Sequence[Setting], records: pd.DataFrame, test_set: str, swept: bool) -> pd.DataFrame:
    """Those of `_counted` that belong to reported rounds."""
    protocols = [protocol_of(setting) for setting in settings]
    places = zip(records["column"], records["round"], strict=True)
    is_reported = [protocols[column].reported(round_) for column, round_ in places]
    return _counted(protocols, records[pd.Series(is_reported, records.index, dtype=bool)], test_set, swept)


def _counted(
    protocols: Sequence[Protocol], records: pd.DataFrame, test_set: str = LOCAL, swept: bool = False
) -> pd.DataFrame:
    """The records that a mean over clients is made of.

    Clients that had never taken part are left out where the setting's protocol excludes them.
    """
    is_swept = records["samples"] > 0
    trained = on_test_set(records[~records["unseen"].astype(bool) & (is_swept if swept else ~is_swept)], test_set)
    excluding = [column for column, protocol in enumerate(protocols) if protocol.never_sampled == "exclude"]
    return trained[trained["participated"].astype(bool) | ~trained["column"].isin(excluding)]


def by_row(values: pd.DataFrame, compared: str = "row") -> pd.DataFrame:
    """Values of one column and policy as (seed, client) x ``compared``: what `inference` compares."""
    return values.pivot(index=["seed", "client"], columns=compared, values="value")
