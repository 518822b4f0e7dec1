"""Trials in Optuna's database, and the points that TPE draws from them."""

from pathlib import Path

import optuna
import pytest
from support.tuning_bench import Bench, a_suite, only_search, tune

from fedprompt.core.errors import UserError
from fedprompt.harness.running.suite import Suite
from fedprompt.harness.tuning.search import Result, Search
from fedprompt.harness.tuning.study import open_storage

LOW, DEFAULT, HIGH = {"lr": 0.03}, {"lr": 0.1}, {"lr": 0.3}


def failures(bench: Bench, search: Search) -> list[str]:
    study = optuna.load_study(study_name=search.name, storage=bench.storage)
    return [trial.user_attrs["failure"] for trial in study.trials if trial.state.name == "FAIL"]


def test_a_point_is_recorded_once_by_whichever_process(bench: Bench, suite: Suite) -> None:
    search = only_search(suite)
    for study in (bench.study(search), bench.study(search)):
        study.end(Result(HIGH, 0.7))
        study.end(Result(HIGH, 0.7))
    assert bench.trials(search) == [(0.3, "COMPLETE")]


def test_a_trial_has_parameters_and_value(bench: Bench, suite: Suite) -> None:
    bench.study(only_search(suite)).end(Result(HIGH, 0.7))
    study = optuna.load_study(study_name=only_search(suite).name, storage=bench.storage)
    assert (study.best_trial.params, study.best_value) == (HIGH, 0.7)


def test_a_failed_point_is_recorded_once_per_reason_until_it_finishes(bench: Bench, suite: Suite) -> None:
    search = only_search(suite)
    for result in (Result(HIGH, reason="x"), Result(HIGH, reason="x"), Result(HIGH, reason="y"), Result(HIGH, 0.7)):
        bench.study(search).end(result)
    assert bench.trials(search) == [(0.3, "FAIL"), (0.3, "FAIL"), (0.3, "COMPLETE")]
    assert failures(bench, search) == ["x", "y"]
    bench.study(search).end(Result(HIGH, reason="x"))
    assert len(bench.trials(search)) == 3


def test_a_diverged_point_has_the_worst_value(bench: Bench, suite: Suite) -> None:
    search = only_search(suite)
    diverged = Result(HIGH, reason="diverged in round 1, client 0: loss is not finite")
    for result in (diverged, diverged, Result(DEFAULT, 0.1)):
        bench.study(search).end(result)
    study = optuna.load_study(study_name=search.name, storage=bench.storage)
    assert [(trial.params["lr"], trial.value) for trial in study.trials] == [(0.3, 0.0), (0.1, 0.1)]
    assert study.trials[0].user_attrs["failure"] == diverged.reason
    assert diverged.state == "diverged"


def test_a_value_outside_the_grid_can_be_recorded(bench: Bench, suite: Suite) -> None:
    """A range is widened while the best value lies at its edge."""
    study = bench.study(only_search(suite))
    study.end(Result(HIGH, 0.7))
    study.end(Result({"lr": 1.0}, 0.8))
    assert bench.trials(only_search(suite)) == [(0.3, "COMPLETE"), (1.0, "COMPLETE")]


def test_results_come_in_the_order_of_proposal(bench: Bench, suite: Suite) -> None:
    study = bench.study(only_search(suite))
    assert study.propose(1) == [DEFAULT, LOW, HIGH]
    study.end(Result(HIGH, 0.7))
    study.end(Result(DEFAULT, 0.5))
    study.end(Result(LOW, reason="no luck"))
    assert [result.value for result in study.results] == [0.5, None, 0.7]


def test_points_of_another_process_are_proposed_before_new_ones(bench: Bench) -> None:
    search = only_search(a_suite(**tune(trials=3)), sampler="tpe")
    first, second = bench.study(search), bench.study(search)
    points = first.propose(2)
    assert points[0] == DEFAULT
    assert second.propose(2) == points
    assert len({point["lr"] for point in [*points, *second.propose(5)]}) == 3  # the budget
    assert len(bench.trials(search)) == 3


def test_a_running_trial_ends_as_that_trial(bench: Bench) -> None:
    search = only_search(a_suite(**tune(trials=2)), sampler="tpe")
    first, second = bench.study(search).propose(2)
    assert [state for _, state in bench.trials(search)] == ["RUNNING", "RUNNING"]
    study = bench.study(search)
    study.end(Result(first, 0.5))
    study.end(Result(second, reason="no luck"))
    assert [state for _, state in bench.trials(search)] == ["COMPLETE", "FAIL"]
    assert failures(bench, search) == ["no luck"]


def test_tpe_tries_no_point_twice_and_ends_where_there_are_no_others(bench: Bench) -> None:
    suite = a_suite(
        methods=["fedpr-s"], **tune(trials=6, grid={"lr": [], "head_lr": [], "fro_normalize": [False, True]})
    )
    study = bench.study(only_search(suite, sampler="tpe"))
    while points := study.propose(1):
        for point in points:
            study.end(Result(point, 0.5))
    values = [result.point["fro_normalize"] for result in study.results]
    assert values[0] is False
    assert len(values) == len(set(values)) <= 2
    assert bench.study(study.search).propose(9) == [result.point for result in study.results]


def test_a_rate_that_follows_lr_is_recorded_with_its_value(bench: Bench) -> None:
    search = only_search(a_suite(methods=["pfedpg"], **tune(grid={"gen_lr": []}, trials=4)), sampler="tpe")
    study = bench.study(search)
    assert study.propose(1) == [{"lr": 0.1, "head_lr": None}]
    study.end(Result({"lr": 0.1, "head_lr": None}, 0.5))
    [trial] = optuna.load_study(study_name=search.name, storage=bench.storage).trials
    assert (trial.params, trial.state.name) == ({"lr": 0.1, "head_lr": 0.1}, "COMPLETE")
    assert bench.study(search).propose(1) == [{"lr": 0.1, "head_lr": None}]
    assert all(0.01 <= point["head_lr"] <= 1 for point in study.propose(3))


def test_a_database_that_cannot_be_opened_is_one_line_without_password(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be opened") as error:
        open_storage("postgresql://me:secret@127.0.0.1:9/x", tmp_path)
    assert "secret" not in str(error.value)
