"""Sentences and mean ranks from numbers that are made up."""

import pytest
from support.report_suites import a_setting, a_suite, make_numbers, records_frame, results_frame

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.harness.report.comparisons import compare_rows
from fedprompt.harness.report.findings import ranks_by_policy, sentences, what_the_tables_say
from fedprompt.harness.report.notes import reading

METHODS = ("head-tune", "fedvpt", "sgpt")
CLIENTS = [0.4, 0.5, 0.5, 0.6, 0.7, 0.6]


def test_mean_ranks_are_those_of_averages_over_settings_by_policy() -> None:
    settings = [a_setting(f"m={m}", METHODS, policies=("local", "global")) for m in range(1, 7)]
    suite = a_suite(settings=tuple(settings))
    results = results_frame(suite)
    local = results["policy"] == "local"
    level = {"head-tune": 0.5, "fedvpt": 0.6, "sgpt": 0.4}
    results["average"] = results["row"].map(level).where(local, 1 - results["row"].map(level))
    ranks = ranks_by_policy(make_numbers(suite, results))
    assert ranks["local"].ranks.to_dict() == {"FedVPT": 1.0, "No prompt": 2.0, "SGPT": 3.0}
    assert ranks["global"].ranks.to_dict() == {"SGPT": 1.0, "No prompt": 2.0, "FedVPT": 3.0}
    lines = list(what_the_tables_say(suite, {}, ranks))
    assert lines[0].startswith("Local head: Mean ranks differ over 6 settings")
    assert "FedVPT has the best" in lines[0]


def test_one_verdict_is_said_once_for_all_policies() -> None:
    suite = a_suite(settings=(a_setting(methods=METHODS, policies=("local", "global")),))
    ranks = ranks_by_policy(make_numbers(suite, results_frame(suite).assign(average=0.5)))
    [line] = what_the_tables_say(suite, {}, ranks)
    assert line.startswith("Local head; Global head: Mean ranks over 1 setting say nothing")


def test_an_unfinished_mean_has_no_rank() -> None:
    suite = a_suite(METHODS, (0, 1), m=range(1, 7))
    results = results_frame(suite).assign(average=0.5)
    results.loc[0, "status"] = "missing"
    assert "No prompt" not in ranks_by_policy(make_numbers(suite, results))["paper"].ranks


@pytest.mark.parametrize(("kind", "control"), [("heterogeneity", "no prompt"), ("ablation", "No prompt")])
def test_a_sentence_names_what_rows_are_compared_with(kind: str, control: str) -> None:
    setting = a_setting(kind=kind, reference="head-tune" if kind == "ablation" else "", policies=("local",))
    suite = a_suite(settings=(setting,), seeds=(0, 1))
    accuracies = {(0, row, seed): [CLIENTS] * 2 for row in ("head-tune", "fedvpt") for seed in (0, 1)}
    comparisons = compare_rows(suite, results_frame(suite), records_frame(accuracies, "local", "local"))
    assert sentences(suite, comparisons, {})[0, "local"].startswith(
        f"Under a local head, no significant difference from {control}"
    )


def test_a_setting_may_name_the_control_of_all_its_rows() -> None:
    """Zero-shot CLIP, say, whatever heads the rows have; sentences, notes and gains then speak of it."""
    setting = a_setting(methods=("zs-clip", "promptfl", "fedvpt", "head-tune"), control="zs-clip")
    suite = a_suite(settings=(setting,), seeds=(0, 1), backbone=BackboneSpec("micro-clip", "random", 32))
    level = {"zs-clip": 0.0, "promptfl": 0.2, "fedvpt": 0.1, "head-tune": -0.2}
    accuracies = {
        (0, row, seed): [[a + level[row] + 0.001 * seed for a in CLIENTS]] * 2 for row in level for seed in (0, 1)
    }
    [comparison] = (
        comparisons := compare_rows(suite, results_frame(suite), records_frame(accuracies, "paper", "none"))
    ).values()
    assert comparison.controls == {"zs-clip"}
    gains = {row: round(difference.points) for row, difference in comparison.differences.items()}
    assert gains == {"promptfl": 20, "fedvpt": 10, "head-tune": -20}
    sentence = sentences(suite, comparisons, {})[0, "paper"]
    assert "methods gain over ZS-CLIP" in sentence
    assert "difference to ZS-CLIP, in points" in " ".join(reading(suite, results_frame(suite)))


def test_a_table_of_methods_without_a_head_does_not_speak_of_heads() -> None:
    setting = a_setting(methods=("zs-clip", "promptfl"), control="zs-clip")
    suite = a_suite(settings=(setting,), seeds=(0, 1), backbone=BackboneSpec("micro-clip", "random", 32))
    accuracies = {(0, row, seed): [CLIENTS] * 2 for row in ("zs-clip", "promptfl") for seed in (0, 1)}
    comparisons = compare_rows(suite, results_frame(suite), records_frame(accuracies, "paper", "none"))
    assert sentences(suite, comparisons, {})[0, "paper"].startswith("No significant difference from ZS-CLIP")
