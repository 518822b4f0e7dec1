"""Each measure against a number computed by hand, and against an independent implementation."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.errors import UserError
from fedprompt.harness.measuring import measures
from fedprompt.harness.measuring.measures import (
    Scores,
    get_measure,
    measure,
    measure_clients,
    measure_names,
    measure_rounds,
)

# Images of three classes: the probabilities of the classes, and the true one.
PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5]])
LABELS = np.array([0, 2, 1, 0])  # right, wrong, right, wrong


def scores_of(probabilities: np.ndarray, labels: np.ndarray) -> Scores:
    true = probabilities[np.arange(len(labels)), labels]
    return Scores(
        label=labels,
        predicted=probabilities.argmax(1),
        rank=1 + (probabilities > true[:, None]).sum(1),
        probability=probabilities.max(1),
        true_probability=true,
        true_log_probability=np.log(true),
        squares=(probabilities**2).sum(1),
    )


def random_scores(images: int = 400, classes: int = 12) -> tuple[torch.Tensor, torch.Tensor, Scores]:
    rng = torch.Generator().manual_seed(2)
    logits = 2 * torch.randn(images, classes, generator=rng, dtype=torch.float64)
    labels = torch.randint(0, classes, (images,), generator=rng)
    labels[:150] = logits[:150].argmax(1)
    return logits, labels, scores_of(logits.softmax(1).numpy(), labels.numpy())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accuracy", 2 / 4),
        ("worst-local", 2 / 4),
        ("balanced-accuracy", (1 / 2 + 1 + 0) / 3),  # of classes 0, 1 and 2
        ("top-5", 1.0),
        ("nll", -(math.log(0.7) + math.log(0.2) + math.log(0.6) + math.log(0.2)) / 4),
        ("brier", (0.09 + 0.04 + 0.01 + 0.25 + 0.09 + 0.64 + 0.01 + 0.16 + 0.09 + 0.64 + 0.09 + 0.25) / 4),
        # One image per bin, but both of confidence 0.5 are wrong: |0.5 - 0| twice, |0.6 - 1|, |0.7 - 1|.
        ("ece", (0.5 + 0.5 + 0.4 + 0.3) / 4),
        ("aurc", (0 + 0 + 1 / 3 + 2 / 4) / 4),  # of the 1, 2, 3, 4 most confident
    ],
)
def test_by_hand(name: str, expected: float) -> None:
    assert get_measure(name).of(scores_of(PROBABILITIES, LABELS)) == pytest.approx(expected)


def test_every_measure_has_a_number_computed_by_hand() -> None:
    marks = test_by_hand.pytestmark  # type: ignore[attr-defined]
    assert measure_names() == ["accuracy", "worst-local", *[name for name, _ in marks[0].args[1][2:]]]


def test_likelihood_brier_and_top_5_are_those_of_torch() -> None:
    logits, labels, scores = random_scores()
    squared = (logits.softmax(1) - F.one_hot(labels, 12)).square().sum(1).mean()
    top = (logits.topk(5).indices == labels[:, None]).any(1).double().mean()
    assert get_measure("nll").of(scores) == pytest.approx(float(F.cross_entropy(logits, labels)))
    assert get_measure("brier").of(scores) == pytest.approx(float(squared))
    assert get_measure("top-5").of(scores) == pytest.approx(float(top))
    assert 0.1 < float(top) < 0.9


def test_balanced_accuracy_is_the_mean_recall() -> None:
    _, labels, scores = random_scores()
    recalls = [scores.correct[labels.numpy() == label].mean() for label in range(12)]
    assert get_measure("balanced-accuracy").of(scores) == pytest.approx(np.mean(recalls))


def test_calibration_error_is_that_of_a_loop_over_bins() -> None:
    _, _, scores = random_scores(images=397)
    rows = sorted(zip(scores.probability, scores.correct, strict=True))
    error, start = 0.0, 0
    for bin_ in range(15):
        size = 397 // 15 + (bin_ < 397 % 15)
        part, start = rows[start : start + size], start + size
        error += size / 397 * abs(sum(p for p, _ in part) / size - sum(c for _, c in part) / size)
    assert start == 397
    assert get_measure("ece").of(scores) == pytest.approx(error)


def test_risk_and_coverage_are_those_of_a_loop() -> None:
    _, _, scores = random_scores()
    rows = sorted(zip(scores.probability, scores.correct, strict=True), reverse=True)
    risks = [1 - sum(correct for _, correct in rows[:count]) / count for count in range(1, len(rows) + 1)]
    assert get_measure("aurc").of(scores) == pytest.approx(sum(risks) / len(risks))


@pytest.mark.parametrize("name", ["ece", "aurc"])
def test_equal_confidences_may_come_in_any_order(name: str) -> None:
    """Sorted with what is right first, a constant confidence would look like a perfect order."""
    labels = np.array([0] * 60 + [1] * 40)
    probabilities = np.tile([0.8, 0.2], (100, 1))
    straight, turned = (get_measure(name).of(scores_of(probabilities, part)) for part in (labels, labels[::-1]))
    assert straight == turned == pytest.approx({"ece": 0.2, "aurc": 0.4}[name])


def test_an_excluded_true_class_has_an_infinite_likelihood_and_a_finite_brier_score() -> None:
    with np.errstate(divide="ignore"):
        scores = scores_of(np.array([[0.0, 1.0], [0.5, 0.5]]), np.array([0, 0]))
    assert get_measure("nll").of(scores) == math.inf
    assert get_measure("brier").of(scores) == pytest.approx((2 + 0.5) / 2)


# -- frames -----------------------------------------------------------------------------------------------------------


def frame(*clients: tuple[int, list[int]], round_: int = 1) -> pd.DataFrame:
    """Clients whose images are predicted right (1) or wrong (0), with probability 0.75."""
    rows = []
    for client, hits in clients:
        for image, hit in enumerate(hits):
            rows.append((round_, client, True, image, 0, 0 if hit else 1, 1 if hit else 2, 0.75, 0.5, -0.7, 0.6))
    names = [*("round", "client", "participated", "image", "label", "predicted", "rank", "probability")]
    return pd.DataFrame(rows, columns=[*names, "true_probability", "true_log_probability", "squares"])


SCORES = pd.concat([frame((3, [1, 1, 0, 1]), (5, [0, 1])), frame((3, [1, 1, 1, 1]), (5, [0, 0]), round_=2)])


def test_clients_have_a_row_per_round() -> None:
    measured = measure_clients(SCORES, "accuracy")
    assert measured[["round", "client", "value", "images"]].to_numpy().tolist() == [
        [1, 3, 0.75, 4],
        [1, 5, 0.5, 2],
        [2, 3, 1.0, 4],
        [2, 5, 0.0, 2],
    ]


@pytest.mark.parametrize(
    ("name", "across", "values"),
    [
        ("accuracy", None, [0.625, 0.5]),
        ("worst-local", None, [0.5, 0.0]),
        ("accuracy", "pooled", [4 / 6, 4 / 6]),
        ("ece", None, [0.75 - 4 / 6, 0.75 - 4 / 6]),  # of the six images together
        ("ece", "mean", [(0.0 + 0.25) / 2, (0.25 + 0.75) / 2]),
        ("ece", "worst", [0.25, 0.75]),  # the largest, since lower is better
    ],
)
def test_rounds_combine_clients(name: str, across: measures.Across | None, values: list[float]) -> None:
    measured = measure_rounds(SCORES, name, across)
    assert measured["round"].tolist() == [1, 2]
    assert measured["value"].tolist() == pytest.approx(values)
    assert measured["images"].tolist() == [6, 6]


def test_no_scores_measure_to_no_rows() -> None:
    assert measure_clients(SCORES[:0], "accuracy").empty
    assert measure_rounds(SCORES[:0], "ece").empty
    assert measure_rounds(SCORES[:0], "accuracy").empty


# -- the registry -----------------------------------------------------------------------------------------------------


@pytest.fixture
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_REGISTRY", dict(measures._REGISTRY))


@pytest.mark.usefixtures("own_registry")
def test_a_new_measure_is_one_function() -> None:
    @measure("margin", "Margin", unit="%", higher_is_better=True)
    def margin(scores: Scores) -> float:
        """The mean probability of the predicted class."""
        return float(scores.probability.mean())

    assert get_measure("margin").says == "The mean probability of the predicted class."
    assert measure_clients(SCORES, "margin")["value"].tolist() == [0.75] * 4
    with pytest.raises(UserError, match="there is a measure 'margin' already"):
        measure("margin", "Another", higher_is_better=True)(margin)


@pytest.mark.usefixtures("own_registry")
def test_a_measure_says_what_it_is() -> None:
    with pytest.raises(UserError, match="'mute' does not say what it is"):
        measure("mute", "Mute", higher_is_better=True)(lambda _: 0.0)


def test_an_unknown_measure_is_one_line_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown measure 'acuracy'\. Did you mean 'accuracy'"):
        measure_clients(SCORES, "acuracy")


def test_every_measure_says_which_way_is_better_and_what_it_is() -> None:
    lower = {name for name in measure_names() if not get_measure(name).higher_is_better}
    assert lower == {"nll", "brier", "ece", "aurc"}
    assert all(get_measure(name).says.endswith((".", "excluded.")) for name in measure_names())
