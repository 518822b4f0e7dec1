"""What more draws bring, paired by seed and client."""

import pandas as pd
import pytest
from support.report_suites import a_setting, a_suite, records_frame

from fedprompt.harness.report.comparisons import compare_draws, draws
from fedprompt.harness.report.findings import sweep_sentence
from fedprompt.harness.running.suite import Suite

CLIENTS = [0.50, 0.60, 0.40, 0.70]
BETTER = [level + 0.05 + 0.01 * place for place, level in enumerate(CLIENTS)]


def swept(second: list[float]) -> tuple[Suite, pd.DataFrame]:
    suite = a_suite(settings=(a_setting(methods=("pfedbayespt",), kind="vsweep"),), seeds=(0, 1))
    frames = [
        records_frame({(0, "pfedbayespt", seed): [levels] * 2 for seed in (0, 1)}).assign(samples=v)
        for v, levels in ((0, CLIENTS), (1, CLIENTS), (2, second))
    ]
    return suite, pd.concat(frames)


def test_every_v_is_compared_with_one_draw() -> None:
    differences = compare_draws(*swept(BETTER))
    assert list(differences) == [(0, "paper", "pfedbayespt", 2)]
    [difference] = differences.values()
    assert difference.points == pytest.approx(6.5)
    assert 0 < difference.low < 6.5 < difference.high
    assert difference.seeds == 2


def test_equal_draws_are_not_called_different() -> None:
    [difference] = compare_draws(*swept(CLIENTS)).values()
    assert (difference.points, difference.significant) == (0.0, False)
    sentence = sweep_sentence({2: difference}, "pFedBayesPT")
    assert sentence.startswith("pFedBayesPT with 2 draws shows no significant difference from one draw: +0.00 points (")


def test_a_gain_is_said_with_its_interval() -> None:
    [difference] = compare_draws(*swept(BETTER)).values()
    sentence = sweep_sentence({2: difference}, "pFedBayesPT")
    assert sentence.startswith("pFedBayesPT gains +6.50 points (")


@pytest.mark.parametrize(("metric", "v"), [("average_samples_10", 10), ("average", 0)])
def test_draws_of_a_metric(metric: str, v: int) -> None:
    assert draws(metric) == v
