"""Which points of a grid are tried."""

from collections import Counter

import pytest
from support.tuning_bench import a_suite, only_search, tune

from fedprompt.harness.tuning.propose import grid_points, grid_proposer
from fedprompt.harness.tuning.search import Result


def test_the_default_is_first_and_the_grid_follows() -> None:
    assert grid_points(only_search(a_suite())) == ({"lr": 0.1}, {"lr": 0.03}, {"lr": 0.3})


def test_a_default_off_the_grid_is_tried_too() -> None:
    suite = a_suite(params={"all": {"lr": 0.2}}, **tune(trials=9))
    assert grid_points(only_search(suite)) == ({"lr": 0.2}, {"lr": 0.03}, {"lr": 0.1}, {"lr": 0.3})


@pytest.mark.parametrize("method", ["fedvpt", "pfedpg", "pfedbayespt"])
def test_no_method_gets_more_than_the_budget(method: str) -> None:
    assert len(grid_points(only_search(a_suite(methods=[method], **tune(grid={}, trials=2))))) == 2
    search = only_search(a_suite(methods=[method]), trials=1)
    assert grid_points(search) == (search.default,)


def test_a_cut_grid_uses_every_value_equally_often() -> None:
    suite = a_suite(methods=["pfedpg"], params={"all": {"lr": 0.01}}, **tune(grid={}, trials=8))  # 8 of 4 x 4
    points = grid_points(only_search(suite))
    assert points[0] == {"lr": 0.01, "gen_lr": 0.1}
    assert set(Counter(point["lr"] for point in points).values()) == {2}
    assert set(Counter(point["gen_lr"] for point in points).values()) == {2}


def test_a_cut_grid_keeps_far_values() -> None:
    suite = a_suite(params={"all": {"lr": 0.01}}, **tune(grid={"lr": [0.005, 0.015, 0.05]}, trials=2))
    assert grid_points(only_search(suite)) == ({"lr": 0.01}, {"lr": 0.05})


def test_a_larger_budget_adds_points_and_takes_none_away() -> None:
    suite = a_suite(methods=["pfedpg"], **tune(grid={}))
    few, many = only_search(suite, trials=5), only_search(suite, trials=9)
    assert few.name == many.name
    assert all(point in grid_points(many) for point in grid_points(few))


def test_a_grid_is_proposed_at_once_and_ended_points_are_not_proposed_again() -> None:
    propose = grid_proposer(only_search(a_suite()))
    assert propose([], 1) == [{"lr": 0.1}, {"lr": 0.03}, {"lr": 0.3}]
    assert propose([Result({"lr": 0.03}, reason="no luck"), Result({"lr": 0.1}, 0.5)], 1) == [{"lr": 0.3}]
