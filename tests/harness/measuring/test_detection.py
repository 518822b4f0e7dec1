import numpy as np
import pytest

from fedprompt.core.errors import UserError
from fedprompt.harness.measuring.detection import auroc, fpr95


def test_separated_scores() -> None:
    assert (auroc([0.8, 0.9], [0.1, 0.2]), fpr95([0.8, 0.9], [0.1, 0.2])) == (1, 0)


def test_equal_distributions() -> None:
    scores = np.arange(100) / 100
    assert auroc(scores, scores) == 0.5
    assert fpr95(scores, scores) == 0.95


def test_by_hand_with_ties() -> None:
    # 3 beats both, 2 ties with one and beats one, 1 ties with one and loses to one: 2 + 1.5 + 0.5 of 6
    assert auroc([3, 2, 1], [2, 1]) == pytest.approx(4 / 6)
    assert fpr95([3, 2, 1], [2, 1, 0]) == pytest.approx(2 / 3)  # with three images none may be lost


def test_the_threshold_keeps_95_of_100() -> None:
    inside = np.arange(100)
    assert fpr95(inside, [4, 5]) == 0.5  # 5 is the largest score that 95 of them reach


def test_exchanged_sets_give_the_rest() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.normal(1, 1, 200).round(1), rng.normal(0, 1, 150).round(1)
    assert auroc(inside, outside) == pytest.approx(1 - auroc(outside, inside))
    assert 0.7 < auroc(inside, outside) < 0.82  # of two normals one deviation apart it is 0.76


@pytest.mark.parametrize("inside", [[], [float("nan")]])
def test_scores_must_be_there(inside: list[float]) -> None:
    with pytest.raises(UserError, match=r"inside: .* at least one"):
        auroc(inside, [1.0])
