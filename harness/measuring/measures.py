"""Measures: one function each, from the scores of a client's images to a number.

    from fedprompt.harness.measuring.measures import Scores, measure

    @measure("margin", "Margin", unit="%", higher_is_better=True)
    def margin(scores: Scores) -> float:
        "The mean probability of the predicted class."
        return scores.probability.mean()

A measure has a name, under which suites and `measure_clients` know it, and says which way is better and how the numbers
of clients become one: their mean, the worst of them, or the same function of all their images together. Nothing else
changes for a new one, and runs that were finished before can be measured with it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedprompt.core.errors import UserError, unknown

Across = Literal["mean", "worst", "pooled"]
BINS = 15  # of the calibration error


@dataclass(frozen=True)
class Scores:
    """Predictions of some images, at least one: arrays with an entry per image."""

    label: NDArray[Any]  # the true class
    predicted: NDArray[Any]  # the class with the largest score
    rank: NDArray[Any]  # of the true class, from 1; of classes with equal scores the first ranks first
    probability: NDArray[Any]  # of the predicted class
    true_probability: NDArray[Any]  # of the true class
    true_log_probability: NDArray[Any]  # -inf if the method excludes the true class
    squares: NDArray[Any]  # all classes' squared probabilities, summed

    @property
    def correct(self) -> NDArray[Any]:
        """1.0 where the predicted class is the true one, else 0.0."""
        hits: NDArray[Any] = (self.predicted == self.label).astype(float)
        return hits

    def by_confidence(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """(probability, correct) in rising order of the predicted class's probability.

        Images with equal probabilities share the mean of their `correct`, so that their order does not matter.
        """
        values, where, counts = np.unique(self.probability, return_inverse=True, return_counts=True)
        shared = np.bincount(where, weights=self.correct) / counts
        return np.repeat(values, counts), np.repeat(shared, counts)


@dataclass(frozen=True)
class Measure:
    """A function of scores with what tables must know of it."""

    name: str
    title: str  # as tables print it
    unit: str  # "%" where tables print hundredths; otherwise what follows the number, maybe nothing
    higher_is_better: bool
    across: Across  # how clients become one number
    says: str  # what it is, in one sentence
    of: Callable[[Scores], float]

    @property
    def scale(self) -> int:
        """What values are multiplied by to be printed."""
        return 100 if self.unit == "%" else 1

    @property
    def gain_scale(self) -> int:
        """What differences are multiplied by to be printed as gains: positive is better."""
        return self.scale if self.higher_is_better else -self.scale

    @property
    def gain_unit(self) -> str:
        """What follows a difference in a sentence."""
        return " points" if self.unit == "%" else f" {self.unit}".rstrip()

    @property
    def decimals(self) -> tuple[int, int]:
        """Of values and of gains in tables."""
        return (2, 1) if self.unit == "%" else (3, 3)


_REGISTRY: dict[str, Measure] = {}
Function = Callable[[Scores], float]


def measure(
    name: str, title: str, *, unit: str = "", higher_is_better: bool, across: Across = "mean", says: str = ""
) -> Callable[[Function], Function]:
    """Register a function as a measure; what it says of itself is its docstring's first sentence unless given.

    One function may serve several measures that combine clients differently.
    """

    def register(function: Function) -> Function:
        if name in _REGISTRY:
            raise UserError(f"there is a measure {name!r} already ({_REGISTRY[name].title}); choose another name.")
        sentence = says or " ".join((function.__doc__ or "").split("\n\n")[0].split())
        if not sentence:
            raise UserError(f"measure {name!r} does not say what it is; give its function a docstring.")
        _REGISTRY[name] = Measure(name, title, unit, higher_is_better, across, sentence, function)
        return function

    return register


def measure_names() -> list[str]:
    """In the order of registration."""
    return list(_REGISTRY)


def get_measure(name: str) -> Measure:
    if name not in _REGISTRY:
        raise unknown("measure", name, _REGISTRY)
    return _REGISTRY[name]


@measure(
    "worst-local",
    "Worst Local",
    unit="%",
    higher_is_better=True,
    across="worst",
    says="The accuracy of the client that has the lowest.",
)
@measure("accuracy", "Average", unit="%", higher_is_better=True)
def accuracy(scores: Scores) -> float:
    """The share of images whose predicted class is the true one."""
    return float(scores.correct.mean())


@measure("balanced-accuracy", "Balanced accuracy", unit="%", higher_is_better=True)
def balanced_accuracy(scores: Scores) -> float:
    """The mean, over the classes of the images, of the share of the class's images that are predicted correctly."""
    _, of_class, sizes = np.unique(scores.label, return_inverse=True, return_counts=True)
    return float((np.bincount(of_class, weights=scores.correct) / sizes).mean())


@measure("top-5", "Top-5 accuracy", unit="%", higher_is_better=True)
def top_5(scores: Scores) -> float:
    """The share of images whose true class is among the five with the largest scores."""
    return float((scores.rank <= 5).mean())


@measure("nll", "Negative log-likelihood", unit="nats", higher_is_better=False)
def negative_log_likelihood(scores: Scores) -> float:
    """The mean of minus the log-probability of the true class; infinite if a true class is excluded."""
    return float(-scores.true_log_probability.mean())


@measure("brier", "Brier score", higher_is_better=False)
def brier_score(scores: Scores) -> float:
    """The mean squared distance of the predicted probabilities from the true class's (1 for it, 0 for others)."""
    return float((scores.squares - 2 * scores.true_probability + 1).mean())


@measure("ece", "Calibration error", unit="%", higher_is_better=False, across="pooled")
def expected_calibration_error(scores: Scores) -> float:
    """The mean gap between confidence and accuracy over 15 bins with equally many images, of all clients together."""
    probability, correct = scores.by_confidence()
    bins = np.array_split(probability - correct, min(BINS, len(correct)))
    return float(sum(abs(gaps.sum()) for gaps in bins) / len(correct))


@measure("aurc", "Area under risk-coverage", unit="%", higher_is_better=False)
def area_under_risk_coverage(scores: Scores) -> float:
    """The error rate among the k most confident predictions, averaged over all k."""
    wrong = 1 - scores.by_confidence()[1][::-1]
    return float((wrong.cumsum() / np.arange(1, len(wrong) + 1)).mean())


# -- measuring ---------------------------------------------------------------------------------------------------------

ARRAYS = tuple(field.name for field in fields(Scores))
OF_IMAGE = ("image", *ARRAYS)
OF_CLIENT = ("client", "participated")


def measure_clients(scores: pd.DataFrame, name: str) -> pd.DataFrame:
    """One row per run, round, reading and client with its ``value`` of the measure, and of how many ``images``.

    ``scores`` are those of `read_scores`, or any rows of them. Clients without images have no row.
    """
    keys = [column for column in scores.columns if column not in OF_IMAGE]
    return _measured(scores, keys, get_measure(name).of)


def measure_rounds(scores: pd.DataFrame, name: str, across: Across | None = None) -> pd.DataFrame:
    """One row per run, round and reading: its clients combined as the measure says, or as ``across`` does.

    Clients that were kept out of training (`unseen`) have rows of their own. What a table reports is the mean of
    ``value`` over the rounds of a run, then over runs.
    """
    measured = get_measure(name)
    keys = [column for column in scores.columns if column not in (*OF_IMAGE, *OF_CLIENT)]
    rule = across or measured.across
    if rule == "pooled":
        return _measured(scores, keys, measured.of)
    worst = "min" if measured.higher_is_better else "max"
    per_client = measure_clients(scores, name).groupby(keys, sort=False, observed=True)
    return per_client.agg(value=("value", "mean" if rule == "mean" else worst), images=("images", "sum")).reset_index()


def _measured(scores: pd.DataFrame, keys: Sequence[str], function: Function) -> pd.DataFrame:
    """One row per combination of ``keys``, in the order of their first rows."""
    numbers = scores.groupby(list(keys), sort=False, observed=True).ngroup().to_numpy()
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    columns = {name: np.split(scores[name].to_numpy()[order], starts[1:]) for name in ARRAYS}
    parts = [Scores(*arrays) for arrays in zip(*columns.values(), strict=True)] if len(starts) else []
    first = scores[list(keys)].iloc[order[starts]].reset_index(drop=True)
    return first.assign(value=[function(part) for part in parts], images=[len(part.label) for part in parts])
