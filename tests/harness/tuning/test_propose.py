"""The pattern search: which points are tried, and when it ends."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from support.tuning_bench import RATES, a_suite, only_search, tune

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.harness.tuning.propose import edge_rates, open_axes, pattern_proposer, start_points
from fedprompt.harness.tuning.search import Point, Result, Search, best_result
from fedprompt.methods import registry

START = [{"lr": 0.1}, {"lr": 0.03}, {"lr": 0.3}]
Landscape = Callable[[Search, Point], float | None]


def peak(**optimum: float) -> Landscape:
    """Accuracy that falls by a tenth per power of ten from the optimum."""

    def value(search: Search, point: Point) -> float:
        effective = search.effective(point)
        return 0.9 - sum(abs(math.log10(effective[name] / best)) / 10 for name, best in optimum.items())

    return value


def explore(search: Search, landscape: Landscape) -> list[Result]:
    propose, results = pattern_proposer(search), list[Result]()
    while points := propose(results, 1):
        results += [Result(point, landscape(search, point)) for point in points]
    return results


def rates_of(results: list[Result]) -> list[Any]:
    return [result.point["lr"] for result in results]


def test_the_suites_own_point_is_first_and_the_methods_rates_follow() -> None:
    assert start_points(only_search(a_suite())) == START
    suite = a_suite(params={"all": {"lr": 0.2}}, **tune(trials=9))
    assert start_points(only_search(suite)) == [{"lr": 0.2}, {"lr": 0.03}, {"lr": 0.1}, {"lr": 0.3}]
    assert start_points(only_search(suite, trials=2)) == [{"lr": 0.2}, {"lr": 0.03}]


@pytest.mark.parametrize("trials", [1, 2, 7, 16])
def test_every_method_gets_the_same_number_of_trials(trials: int) -> None:
    for method in registry().names(FrozenViT.offers):
        search = only_search(a_suite(methods=[method], **tune(grid={}, trials=trials)))
        points = [result.point for result in explore(search, peak(lr=0.02))]
        assert points[0] == search.default
        assert len(points) == len({str(point) for point in points}) == trials


@pytest.mark.parametrize(("optimum", "beyond"), [(10.0, [0.948683, 3.0, 9.48683]), (0.001, [0.00948683, 0.003])])
def test_a_range_widens_while_the_best_lies_at_its_edge(optimum: float, beyond: list[float]) -> None:
    tried = rates_of(explore(only_search(a_suite(**tune(trials=9))), peak(lr=optimum)))
    assert tried[:3] == [0.1, 0.03, 0.3]
    assert tried[3 : 3 + len(beyond)] == pytest.approx(beyond, rel=1e-4)


def test_between_tried_neighbours_the_steps_become_finer() -> None:
    tried = rates_of(explore(only_search(a_suite(**tune(trials=7))), peak(lr=0.1)))
    assert tried == pytest.approx([0.1, 0.03, 0.3, 0.0562341, 0.177828, 0.0749894, 0.133352])


def test_every_rate_is_searched_and_the_prompts_may_outrun_the_head() -> None:
    search = only_search(a_suite(methods=["pfedpg"], **tune(grid={}, trials=16)))
    assert search.rates == ("lr", "head_lr", "gen_lr")
    best = best_result(explore(search, peak(lr=1.5, head_lr=0.1, gen_lr=1.0)))
    assert best is not None
    assert best.point == {"lr": 1.0, "head_lr": 0.1, "gen_lr": 1.0}


def test_a_rate_that_follows_lr_is_left_by_raising_one_of_the_two() -> None:
    search = only_search(a_suite(methods=["pfedpg"], **tune(grid={**RATES, "head_lr": [0.1], "gen_lr": []}, trials=5)))
    untied = [result.point for result in explore(search, peak(lr=0.1, head_lr=0.1))][3:]
    assert untied == [{"lr": 0.316228, "head_lr": 0.1}, {"lr": 0.1, "head_lr": 0.316228}]


def test_equal_rates_are_one_point_however_they_are_written() -> None:
    search = only_search(a_suite(methods=["pfedpg"], **tune(grid={})))
    assert search.tied({"lr": 1.0, "head_lr": 0.999999, "gen_lr": 1.0}) == {"lr": 1.0, "head_lr": None, "gen_lr": 1.0}
    assert search.effective({"lr": 1.0, "head_lr": None}) == {"lr": 1.0, "head_lr": 1.0}


def test_other_parameters_move_to_the_next_value_of_their_list() -> None:
    grid = {"lr": [], "head_lr": [], "encoder_lr": []}
    search = only_search(a_suite(methods=["pfedbayespt"], **tune(grid=grid, trials=9)))
    weights = [result.point["kl_weight"] for result in explore(search, lambda _, point: -point["kl_weight"])]
    assert weights == [1.0, 0.1, 0.01, 0.001]  # and then there are no others


def test_a_finite_space_is_tried_as_a_whole() -> None:
    grid = {"lr": [], "head_lr": [], "insert_block": [3, 6, 9], "tau": [0.05, 0.1, 0.5]}
    search = only_search(a_suite(methods=["pep-fedpt"], **tune(grid=grid, trials=99)))
    assert len(explore(search, lambda *_: 0.5)) == 4 * 3  # the default block, 0, is not on the grid


def test_a_point_that_fails_counts_as_the_worst_and_as_a_trial() -> None:
    def diverges(_: Search, point: Point) -> float | None:
        return None if point["lr"] > 0.2 else 0.5 + point["lr"]

    results = explore(only_search(a_suite(**tune(trials=6))), diverges)
    assert len(results) == 6
    assert rates_of(results)[3:] == pytest.approx([0.0562341, 0.177828, 0.133352])


def test_where_everything_fails_smaller_rates_are_tried() -> None:
    tried = rates_of(explore(only_search(a_suite(**tune(trials=5))), lambda *_: None))
    assert tried[3:] == pytest.approx([0.00948683, 0.003], rel=1e-4)


def test_points_depend_on_the_results_alone() -> None:
    search = only_search(a_suite(methods=["pfedpg"], **tune(grid={}, trials=12)))
    results = explore(search, peak(lr=1.0, gen_lr=0.01))
    for count in range(len(results)):
        points = pattern_proposer(search)(results[:count], 3)
        assert points[0] in [result.point for result in results]


def test_a_larger_budget_adds_points_and_takes_none_away() -> None:
    suite = a_suite(methods=["pfedpg"], **tune(grid={}))
    few, many = only_search(suite, trials=6), only_search(suite, trials=14)
    assert few.name == many.name
    assert explore(many, peak(lr=1.0))[:6] == explore(few, peak(lr=1.0))


def test_ended_points_are_not_proposed_again() -> None:
    propose = pattern_proposer(only_search(a_suite()))
    assert propose([], 1) == START
    assert propose([Result({"lr": 0.03}, reason="no luck"), Result({"lr": 0.1}, 0.5)], 1) == [{"lr": 0.3}]


def test_an_edge_and_an_untried_neighbour_are_told_apart() -> None:
    search = only_search(a_suite(methods=["pfedpg"], **tune(grid={**RATES, "head_lr": [0.1], "gen_lr": []})))
    results = [Result({"lr": rate, "head_lr": None}, 0.5) for rate in (0.1, 0.03, 0.3)]
    assert edge_rates(search, results, results[0].point) == []
    assert open_axes(search, results, results[0].point) == ["head_lr"]
    assert edge_rates(search, results, results[2].point) == ["lr", "head_lr"]
    assert open_axes(search, results, results[2].point) == ["lr", "head_lr"]
