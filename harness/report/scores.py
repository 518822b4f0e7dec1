"""From the scores of a run to columns of its records: one column per measure."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from fedprompt.core.errors import UserError
from fedprompt.harness.measuring.measures import ARRAYS, Measure, Scores, get_measure, measure_clients
from fedprompt.harness.measuring.metrics import per_client
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.suite import Suite

FROM_RECORDS = ("accuracy", "worst-local")  # measures that the table of accuracies has, with or without scores
ROUND = ["round", "samples", "policy", "test_set", "unseen"]  # and reading: what clients are combined in
CLIENT = [*ROUND, "client"]


def further_measures(suite: Suite) -> list[str]:
    """Those that the suite's report makes tables of besides the table of accuracies."""
    return [name for name in dict.fromkeys(suite.measures) if name not in FROM_RECORDS]


def measured_records(
    records: Mapping[str, pd.DataFrame],
    scores: Iterable[tuple[str, pd.DataFrame]],
    cells: Mapping[str, Cell],
    names: Sequence[str],
) -> dict[str, pd.DataFrame]:
    """Records with one column per measure, by cell; it is empty in rounds without scores, and in runs without any."""
    measured = {key: frame.assign(**dict.fromkeys(names, np.nan)) for key, frame in records.items()}
    for key, images in scores:
        if key not in records:  # they could not be read
            continue
        frame = records[key]
        if cells[key].protocol.never_sampled == "exclude":
            images = images[images["participated"] | images["unseen"]]
        for name in names:
            frame = frame.merge(client_values_of(images, get_measure(name)), how="left", on=CLIENT)
        measured[key] = frame
    return measured


def client_values_of(scores: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """One row per round, reading and client with its value, in a column of the measure's name.

    The values of a pooled measure are those of the jackknife, shifted so that their mean over clients is the measure of
    all images pooled: the value of a client says how much the pooled number owes to it.
    """
    if measure.across != "pooled":
        values = measure_clients(scores, measure.name)
        return values[[*CLIENT, "value"]].rename(columns={"value": measure.name})
    rows = []
    for place, part in scores.groupby(ROUND, sort=False, observed=True):
        clients, numbers = np.unique(part["client"], return_inverse=True)
        columns = [part[name].to_numpy() for name in ARRAYS]
        shares = _jackknife(Scores(*columns), numbers, measure)
        rows += [(*place, client, share) for client, share in zip(clients, shares, strict=True)]
    return pd.DataFrame(rows, columns=[*CLIENT, measure.name])


def _jackknife(scores: Scores, clients: "np.ndarray[tuple[int], np.dtype[np.intp]]", measure: Measure) -> list[float]:
    """One value per client, of ``clients`` numbered from 0; a client alone has the value of all images."""
    pooled, count = measure.of(scores), int(clients.max()) + 1
    if count == 1:
        return [pooled]
    columns = [getattr(scores, name) for name in ARRAYS]
    without = np.array([measure.of(Scores(*(c[clients != each] for c in columns))) for each in range(count)])
    return list(pooled + (count - 1) * (without.mean() - without))


def check_scores(scores: pd.DataFrame, records: pd.DataFrame, where: object) -> None:
    """Refuse scores that do not say what the records say: who was right how often in every reported round."""
    reported = records[records["round"].isin(scores["round"].unique()) & (records["total"] > 0)]
    counted = per_client(reported).set_index(CLIENT)[["accuracy", "total"]]
    measured = measure_clients(scores, "accuracy").set_index(CLIENT)[["value", "images"]]
    both = counted.join(measured, how="outer")
    if not (np.isclose(both["accuracy"], both["value"]) & (both["total"] == both["images"])).all():
        raise UserError(f"the scores in {where} are not those of its records; run or take its cells again.")
