"""The numbers of the tables: each metric of each row over its seeds, what it gains, and what a paper prints for it.

They are made here and nowhere else; tables, figures, sentences and tables.csv read them.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from fedprompt.core.text import visible
from fedprompt.harness.measuring.measures import Measure, get_measure
from fedprompt.harness.report.collect import EXCLUDE, OF_KIND, PLACE, Place
from fedprompt.harness.report.comparisons import COMPARED, Comparisons, Sweeps, draws
from fedprompt.harness.report.inference import PERCENTILES, Difference, deciles
from fedprompt.harness.report.papers import Paper, Printed, printed_value
from fedprompt.harness.report.values import ACCURACY, by_policy
from fedprompt.harness.running.suite import Suite

NAN = float("nan")
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class PairedDifference:
    """An ablation's difference from its reference, as gains are printed."""

    by_seed: Mapping[int, float]  # of each seed that both have finished
    over_clients: Difference | None  # with its interval; None where there are no records

    @property
    def mean(self) -> float:
        """Over seeds."""
        return float(pd.Series(self.by_seed, dtype=float).mean())

    @property
    def std(self) -> float:
        """Sample standard deviation over seeds; NaN for one seed."""
        return float(pd.Series(self.by_seed, dtype=float).std(ddof=1))


@dataclass(frozen=True, kw_only=True)
class Number(Place):
    """One entry of a table: a metric of a row, over its seeds; accuracies in percent, differences in points.

    Numbers of other measures are in the measure's unit, and their gains are positive where the row is better.
    """

    method: str
    dataset: str
    partition: str
    measure: Measure  # whose metric it is
    metric: str  # as of accuracy: `average` is what the table compares, whatever the measure
    mean: float
    std: float  # sample standard deviation over seeds
    mean_exclude: float  # the same without clients that never took part
    std_exclude: float
    seeds: int  # finished ones
    seeds_expected: int
    status: str  # of its seeds together: finished, diverged, failed, missing
    untuned: bool  # its rates were not tuned, while those of other rows were
    rounds_counted: float
    bytes_up: float  # of one client in one round
    bytes_down: float
    drift: float  # over the last rounds
    moving: float  # share of the seeds that had not settled
    # What follows is about the metric that a table compares; other metrics have none of it.
    control: bool = False
    gain: Difference | None = None  # over the control; in a V-sweep over a single draw
    smallest_detectable: float = NAN
    deciles: tuple[float, ...] = ()  # values that `PERCENTILES` of the clients stay below
    leads: bool = False  # the best of its column, and significantly better than the second
    paired: PairedDifference | None = None  # in an ablation
    printed: Printed | None = None  # by the paper that the setting names

    @property
    def entry(self) -> tuple[int, str, str]:
        """Setting, policy and row: which line of which column."""
        return self.column, self.policy, self.row

    @property
    def metric_name(self) -> str:
        """In tables.csv: `average`, `nll`, `unseen_nll`."""
        return self.metric if self.measure.name == ACCURACY else self.metric.replace("average", self.measure.name)


def metrics_of(kind: str, measure: str) -> tuple[str, ...]:
    """What tables print: of accuracy some that nothing is compared with, of other measures none of these."""
    return (COMPARED[kind],) if kind in COMPARED and measure != ACCURACY else OF_KIND[kind]


def summarise(
    suite: Suite,
    results: pd.DataFrame,
    comparisons: Comparisons,
    sweeps: Sweeps,
    papers: Mapping[str, Paper],
    measure: str = ACCURACY,
) -> list[Number]:
    """All numbers of a suite's ``measure``, in the order of its tables; all but the suite and papers are of it, too."""
    known = get_measure(measure)
    paired = _paired_differences(suite, results, comparisons, known)
    numbers = []
    for values, cells in results.groupby(PLACE, sort=False):
        place = Place(*values)  # type: ignore[arg-type]
        state = _state(set(cells["status"]))
        finished = cells if state == "finished" else cells[:0]
        finished = finished[finished["status"] == "finished"]
        for metric in metrics_of(place.kind, measure):
            means = known.scale * finished[metric].dropna()
            without = known.scale * finished[EXCLUDE[metric]].dropna() if metric in EXCLUDE else means
            number = Number(
                **asdict(place),
                **{name: cells.iloc[0][name] for name in ("dataset", "partition", "method", "untuned")},
                measure=known,
                metric=metric,
                mean=means.mean(),
                std=means.std(ddof=1) if np.isfinite(means).all() else NAN,
                mean_exclude=without.mean(),
                std_exclude=without.std(ddof=1),
                seeds=len(finished),
                seeds_expected=len(cells),
                status=state,
                rounds_counted=finished["rounds_counted"].max(),
                bytes_up=4 * finished["floats_up"].mean(),  # floats of four bytes
                bytes_down=4 * finished["floats_down"].mean(),
                drift=finished["drift"].mean(),
                moving=finished["moving"].mean(),
                printed=printed_value(suite, place, metric, papers) if measure == ACCURACY else None,
                paired=paired.get((place.column, place.policy, place.row)),
                **_compared(place, known, metric, comparisons, sweeps),
            )
            numbers.append(number)
    return numbers


def _state(states: Collection[str]) -> str:
    """Of a number, from those of its seeds: it is no average of seeds if one of them diverged."""
    return next(state for state in ("diverged", "finished", "failed", "missing") if state in states)


def _compared(place: Place, measure: Measure, metric: str, comparisons: Comparisons, sweeps: Sweeps) -> dict[str, Any]:
    """The fields that come from clients' values; an ablation has differences from its reference instead of gains."""
    if place.kind == "vsweep":
        return {"gain": _known(sweeps.get((place.column, place.policy, place.row, draws(metric))))}
    comparison, row = comparisons.get((place.column, place.policy)), place.row
    if comparison is None or row not in comparison.values or metric != COMPARED[place.kind]:
        return {}
    leader = comparison.leader
    fields = {
        "leads": leader is not None and leader.distinguishable and leader.best == row,
        "deciles": deciles(comparison.values[row], measure.scale) if measure.across == "mean" else (),
        "smallest_detectable": comparison.detectable.get(row, NAN),
    }
    if place.kind == "ablation":
        return fields
    return {**fields, "control": row in comparison.controls, "gain": _known(comparison.differences.get(row))}


def _known(difference: Difference | None) -> Difference | None:
    """None where too few clients could be compared."""
    return None if difference is None or isnan(difference.points) else difference


def _paired_differences(
    suite: Suite, results: pd.DataFrame, comparisons: Comparisons, measure: Measure
) -> dict[tuple[int, str, str], PairedDifference]:
    """Those of all ablations, by setting, policy and row; the reference itself has none."""
    paired = {}
    finished = results[(results["kind"] == "ablation") & (results["status"] == "finished")]
    for column, policy, cells in by_policy(finished):
        averages = {str(row): part.set_index("seed")["average"] for row, part in cells.groupby("row")}
        reference = suite.settings[column].reference
        comparison = comparisons.get((column, policy))
        for row in averages.keys() - {reference} if reference in averages else ():
            by_seed = (measure.gain_scale * (averages[row] - averages[reference])).dropna()
            over_clients = comparison.differences.get(row) if comparison else None
            paired[column, policy, row] = PairedDifference(
                {int(str(seed)): points for seed, points in by_seed.items()}, over_clients
            )
    return paired


def grouped(numbers: Iterable[Number], key: Callable[[Number], Key]) -> dict[Key, list[Number]]:
    """The numbers by ``key``, in the order in which keys first appear."""
    groups: dict[Key, list[Number]] = {}
    for number in numbers:
        groups.setdefault(key(number), []).append(number)
    return groups


def numbers_frame(suite: Suite, numbers: Sequence[Number]) -> pd.DataFrame:
    """tables.csv: one line per number, at full precision."""
    return pd.DataFrame([dict(_line(suite.name, number)) for number in numbers])


def csv_text(frame: pd.DataFrame) -> str:
    """As all our CSV files are written: no index, full precision, the same line ends everywhere."""
    texts = frame.select_dtypes(["object", "string"]).map(_cell_text)
    return frame.assign(**texts).to_csv(index=False, lineterminator="\n")


def _cell_text(value: object) -> object:
    """A text that a terminal shows as it is and a spreadsheet does not compute; anything else stays."""
    if not isinstance(value, str):
        return value
    shown = visible(value)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


def _line(suite: str, n: Number) -> Iterator[tuple[str, object]]:
    yield "suite", suite
    for name in ("table", "kind", "setting", "row", "title", "method", "policy", "reading"):
        yield name, getattr(n, name)
    yield "metric", n.metric_name
    for name in ("dataset", "partition", "mean", "std", "mean_exclude", "std_exclude", "seeds", "seeds_expected"):
        yield name, getattr(n, name)
    for name in ("status", "untuned", "rounds_counted", "bytes_up", "bytes_down", "drift", "moving"):
        yield name, getattr(n, name)
    printed, gain, paired = n.printed, n.gain, n.paired
    yield "published", printed.value if printed else NAN
    yield "published_std", printed.std if printed else NAN
    yield "difference", n.mean - printed.value if printed else NAN
    yield "doubts", " ".join(printed.doubts) if printed else ""
    yield from zip(("gain", "gain_low", "gain_high", "gain_p_adjusted"), _edges(gain), strict=True)
    yield "smallest_detectable", n.smallest_detectable
    yield from zip((f"p{each}" for each in PERCENTILES), n.deciles or (NAN,) * len(PERCENTILES), strict=True)
    yield "control", n.control
    yield "leads", n.leads
    over_clients = paired.over_clients if paired else None
    yield "paired_difference", paired.mean if paired else NAN
    yield "paired_std", paired.std if paired else NAN
    yield "paired_seeds", len(paired.by_seed) if paired else NAN
    yield from zip(("paired_low", "paired_high"), _edges(over_clients)[1:3], strict=True)
    yield "paired_clients", NAN if not paired else over_clients.clients if over_clients else 0


def _edges(difference: Difference | None) -> tuple[float, float, float, float]:
    if difference is None:
        return NAN, NAN, NAN, NAN
    return difference.points, difference.low, difference.high, difference.adjusted
