"""Which searches a suite has."""

import dataclasses
from typing import Any

import pytest
from support.tuning_bench import KEY, a_suite, only_search, tune

from fedprompt.core.errors import UserError
from fedprompt.harness.tuning.search import Result, best_result, chosen_result, searches


def test_without_a_grid_of_the_suite_the_methods_own_counts() -> None:
    assert only_search(a_suite(**tune(grid={"head_lr": []}))).grid == {"lr": (0.01, 0.05, 0.1)}


def test_an_empty_list_takes_a_parameter_out() -> None:
    suite = a_suite(methods=["pfedpg"], **tune(grid={"gen_lr": [], "head_lr": []}))
    assert list(only_search(suite).grid) == ["lr"]
    assert searches(a_suite(**tune(grid={"lr": [], "head_lr": []}))) == []


def test_a_parameter_that_no_method_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        UserError, match=r"unknown parameter in tune.grid of suite 'mini' 'gen_rl'. Did you mean 'gen_lr'"
    ):
        searches(a_suite(**tune(grid={"gen_rl": [1]})))


def test_a_value_that_a_parameter_cannot_take_is_refused() -> None:
    with pytest.raises(UserError, match="out of range"):
        searches(a_suite(**tune(grid={"lr": [-1]})))
    with pytest.raises(UserError, match="is not a table of lists"):
        searches(a_suite(**tune(grid={"lr": 0.1})))


def test_no_trials_are_refused() -> None:
    with pytest.raises(UserError, match="0 trials are too few"):
        searches(a_suite(), trials=0)


def test_trials_see_held_out_data_and_tuning_seeds_alone() -> None:
    cells = only_search(a_suite()).cells({"lr": 0.3})
    assert [cell.seed for cell in cells] == [100, 101]
    assert {(cell.phase, cell.protocol.val_fraction, cell.protocol.rounds) for cell in cells} == {("tune", 0.1, 2)}
    assert {cell.params["lr"] for cell in cells} == {0.3}


def test_a_trial_on_test_data_is_impossible() -> None:
    suite = a_suite()
    leaky = dataclasses.replace(suite, tune=dataclasses.replace(suite.tune, protocol={}))
    with pytest.raises(AssertionError, match="must not see test data"):
        only_search(leaky).cells({"lr": 0.3})


def test_variants_and_repeated_settings_share_one_search() -> None:
    setting = {"table": "T", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [2]}
    suite = a_suite(
        methods=["fedvpt", "long"],
        variants={"long": {"method": "fedvpt", "params": {"length": 4}}},
        settings=[setting, {**setting, "kind": "vsweep"}, {**setting, "m": [3]}],
    )
    assert [search.key for search in searches(suite)] == [KEY, ("fedvpt", "glyph-domains", "domains:m=3", KEY[3])]
    assert searches(suite)[0].base[0].params["length"] != 4


def test_settings_of_a_data_set_share_the_first_ones_study_where_the_suite_says_so() -> None:
    setting = {"table": "T", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [2, 3]}
    suite = a_suite(settings=[setting, {**setting, "dataset": "glyph-100", "m": [1]}], tune={"shared": True})
    assert [search.key[1:3] for search in searches(suite)] == [KEY[1:3], ("glyph-100", "domains:m=1")]


def test_trainings_with_a_local_and_a_global_head_are_tuned_separately() -> None:
    local, shared = searches(a_suite(policies=["local", "global", "global_then_ft"]))
    assert (local.key, shared.key) == ((*KEY[:3], "local"), (*KEY[:3], "global"))
    assert (local.readings, shared.readings) == (("average",), ("average", "average_ft"))
    assert [cell.protocol.finetune_epochs > 0 for cell in (*local.base, *shared.base)] == [False, False, True, True]


@pytest.mark.parametrize(("policy", "reading"), [("global", "average"), ("global_then_ft", "average_ft")])
def test_only_the_readings_that_the_suite_lists_count(policy: str, reading: str) -> None:
    assert only_search(a_suite(policies=[policy])).readings == (reading,)


def test_rows_of_an_ablation_are_not_searched_for_they_share_the_values_of_their_reference() -> None:
    setting = {"table": "T", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [2]}
    ablation = {**setting, "kind": "ablation", "methods": ["fedvpt", "fedvpt-d"], "reference": "fedvpt"}
    assert [search.key for search in searches(a_suite(settings=[ablation]))] == [KEY]


def test_suites_that_share_a_setting_share_its_setup_but_not_its_study() -> None:
    one = only_search(a_suite())
    other = only_search(dataclasses.replace(a_suite(), name="other"), sampler="tpe")
    assert (one.setup, one.key) == (other.setup, other.key)
    assert one.name != other.name


def test_the_name_is_readable_and_stable() -> None:
    name = only_search(a_suite()).name
    assert name == only_search(a_suite()).name
    assert name.startswith("mini/fedvpt/glyph-domains/domains:m=2/")


def test_a_search_begins_where_the_suite_says_for_the_owner_of_the_head() -> None:
    policies = {"policies": ["local", "global"]}
    local, shared = searches(a_suite(**policies, **tune(start={"local": {"head_lr": 0.003, "gen_lr": 0.1}})))
    assert (local.default["lr"], local.base[0].params["head_lr"]) == (0.1, 0.003)  # it has no gen_lr
    assert shared.setup == searches(a_suite(**policies, **tune()))[1].setup  # as decided as it was


@pytest.mark.parametrize(
    "changes",
    [
        {"params": {"all": {"lr": 0.1, "length": 3}}},
        {"protocol": {"epochs": 2}},
        tune(seeds=[102]),
        tune(finals=[102]),
        tune(tie=0.02),
        tune(start={"local": {"lr": 0.03}}),
        tune(protocol={"val_fraction": 0.2}),
        tune(grid={"lr": [0.1, 0.3], "head_lr": []}),
    ],
)
def test_a_changed_suite_has_another_study(changes: dict[str, Any]) -> None:
    changed, search = only_search(a_suite(**(tune() | changes))), only_search(a_suite(**tune()))
    assert changed.name != search.name
    assert changed.setup != search.setup


def test_ties_go_to_the_default_then_to_the_first() -> None:
    def best_of(*values: float | None) -> Any:
        best = best_result([Result({"lr": index}, value) for index, value in enumerate(values)])
        return best and best.point["lr"]

    assert best_of(0.5, 0.5, 0.4) == 0
    assert best_of(0.4, 0.5, 0.5) == 1
    assert best_of(0.1 + 0.2, 0.3, None) == 0
    assert best_of(0.3, 0.1 + 0.2) == 0  # not by the last bit
    assert best_of(None, None) is None


def test_of_points_that_tie_with_the_best_the_one_with_the_gentlest_rates_is_chosen() -> None:
    def chosen_at(tie: float, *finals: tuple[float, ...]) -> Any:
        search = only_search(a_suite(**tune(tie=tie)))
        scores = ((0.1, 0.5), (0.3, 0.51), (0.03, 0.48), (0.01, 0.2))
        results = [Result({"lr": lr}, value, by_seed=(value,)) for lr, value in scores]
        results[: len(finals)] = [dataclasses.replace(r, finals=more) for r, more in zip(results, finals, strict=False)]
        chosen = chosen_result(search, results)
        return chosen and chosen.point["lr"]

    assert chosen_at(0) == 0.3
    assert chosen_at(0.02) == 0.1
    assert chosen_at(0.035) == 0.03
    assert chosen_at(0.035, (0.5,), (0.51,)) == 0.1  # only finalists count
    assert chosen_at(0.035, (0.1,), (0.51,)) == 0.3  # the other one failed there


def test_finals_of_a_shared_study_take_turns_over_the_columns_that_it_serves() -> None:
    column = {"table": "T", "dataset": "glyph-domains"}
    columns = [column | {"partition": f"domains:m={m}"} for m in (1, 2, 6)]
    unseen = column | {"partition": "domains:m=2,unseen=half", "kind": "unseen"}
    suite = a_suite(settings=[*columns, unseen], **tune(finals=[102, 103, 104, 105], shared=True))
    for search in searches(suite):
        assert [cell.partition for cell in search.base] == ["domains:m=1"]
        assert [(cell.seed, cell.partition) for cell in search.finals] == [
            (102, "domains:m=2"),
            (103, "domains:m=6"),
            (104, "domains:m=1"),
            (105, "domains:m=2"),
        ]
