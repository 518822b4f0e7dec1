import numpy as np
import pandas as pd
import pytest

from fedprompt.harness.measuring.convergence import still_moving


def curve(*values: float) -> "pd.Series[float]":
    return pd.Series(values, index=range(1, len(values) + 1))


def test_drift_is_later_half_minus_earlier_half_of_the_last_third() -> None:
    result = still_moving(curve(*[0.0] * 8, 0.50, 0.54, 0.60, 0.64))
    assert (result.drift, result.moving, result.evaluations) == (pytest.approx(10), True, 4)


def test_a_flat_end_has_settled() -> None:
    assert not still_moving(curve(*np.linspace(0, 0.8, 20), *[0.8] * 10)).moving


def test_a_rise_of_less_than_a_point_has_settled() -> None:
    assert not still_moving(curve(*[0.7] * 20, *np.linspace(0.7, 0.715, 10))).moving


def test_a_drift_within_its_noise_has_settled() -> None:
    result = still_moving(curve(*[0.7] * 12, 0.60, 0.80, 0.64, 0.76, 0.84, 0.62))
    assert abs(result.drift) > 1
    assert not result.moving


def test_a_fall_is_a_movement() -> None:
    result = still_moving(curve(*np.linspace(0.9, 0.3, 12)))
    assert result.moving
    assert result.drift < 0


def test_few_evaluations_use_the_last_four() -> None:
    sparse = pd.Series([0.2, 0.4, 0.6, 0.7, 0.8], index=[10, 20, 30, 40, 50])
    assert still_moving(sparse).evaluations == 4
    assert still_moving(sparse).drift == pytest.approx(25)


def test_two_evaluations_are_compared_by_the_threshold_alone() -> None:
    assert still_moving(curve(0.5, 0.6)).moving
    assert not still_moving(curve(0.5, 0.505)).moving


def test_one_evaluation_says_nothing() -> None:
    result = still_moving(curve(0.5))
    assert np.isnan(result.drift)
    assert (result.moving, result.evaluations) == (False, 1)


def test_a_loss_has_a_threshold_of_its_own() -> None:
    loss = curve(*np.linspace(2.0, 1.6, 12))
    assert still_moving(loss, threshold=0.05).moving
    assert not still_moving(loss, threshold=0.2).moving
