import dataclasses

import pytest
from support.report_suites import a_setting, a_suite, every_kind, results_frame
from support.run_folders import BACKBONE

from fedprompt.harness.report.notes import LISTED, alerts, facts, provenance, reading, tuned_section
from fedprompt.harness.running.suite import Suite, Tune

TRAINED = dataclasses.replace(BACKBONE, weights="sha256:0123")


def a_trained_suite(**change: object) -> Suite:
    return a_suite(**{"backbone": TRAINED, **change})


def test_nothing_to_warn_about() -> None:
    suite = a_trained_suite()
    assert alerts(suite, results_frame(suite)) == []


def test_random_weights_are_said_first() -> None:
    suite = a_suite()
    results = results_frame(suite).assign(status="missing")
    assert alerts(suite, results)[0].startswith("RANDOM WEIGHTS: ")


def test_held_out_data_are_said() -> None:
    suite = a_trained_suite(settings=(a_setting(protocol={"val_fraction": 0.1}),))
    assert alerts(suite, results_frame(suite))[0].startswith("VALIDATION DATA")


def test_cells_are_counted_once_wherever_they_are_shown() -> None:
    suite = dataclasses.replace(every_kind((0,)), backbone=TRAINED)
    results = results_frame(suite)
    results.loc[results["row"] == "pfedbayespt", "status"] = "missing"
    assert alerts(suite, results)[0].startswith("5 of 6 cells are finished (– is missing); complete them with: ")
    assert dict(facts(suite, results))["Cells"] == "5 of 6 finished"


def test_failures_are_told_with_their_reason() -> None:
    suite = a_trained_suite()
    results = results_frame(suite)
    results.loc[1, ["status", "reason"]] = ["failed", "loss is not finite"]
    assert alerts(suite, results)[1:] == ["failed: fedvpt, Feature shift, m=1, seed 0: loss is not finite"]


def test_a_run_below_half_of_no_prompt_is_named() -> None:
    suite = a_trained_suite(seeds=(0, 1), settings=(a_setting(policies=("global",)),))
    averages = {("head-tune", 0): 0.8, ("fedvpt", 0): 0.41, ("head-tune", 1): 0.7, ("fedvpt", 1): 0.1}
    results = results_frame(suite)
    results["average"] = [averages[row, seed] for row, seed in zip(results["row"], results["seed"], strict=True)]
    [line] = alerts(suite, results)
    assert line.startswith("COLLAPSED: 1 of 4 runs")
    assert line.endswith(", m=1, global head, seed 1: 10.0 % instead of 70.0 %.")


def test_a_run_that_collapsed_in_one_of_its_readings_is_named() -> None:
    suite = a_trained_suite(settings=(a_setting(policies=("global", "global_then_ft")),))
    averages = {("fedvpt", "global_then_ft"): 0.1}
    results = results_frame(suite)
    results["average"] = [averages.get(place, 0.8) for place in zip(results["row"], results["policy"], strict=True)]
    [line] = alerts(suite, results)
    assert line.startswith("COLLAPSED: 1 of 2 runs")
    assert line.endswith("global head, fine-tuned, seed 0: 10.0 % instead of 80.0 %.")


def test_many_failures_are_cut_short() -> None:
    suite = a_trained_suite(seeds=tuple(range(LISTED)))
    lines = alerts(suite, results_frame(suite).assign(status="failed", reason="no memory"))
    assert len(lines) == 1 + LISTED + 1
    assert lines[-1] == f"... and {LISTED} more; see cells.csv."


def test_methods_on_different_partitions_are_told() -> None:
    suite = a_trained_suite()
    results = results_frame(suite)
    results.loc[1, "partition_hash"] = "other"
    assert alerts(suite, results) == ["PARTITIONS DIFFER between the methods of a setting and seed; see Provenance."]


def test_backbone_seeds_and_code_are_named() -> None:
    suite = a_trained_suite(seeds=(0, 1))
    told = dict(facts(suite, results_frame(suite).assign(code="0.1.0", commit="0123456789abcdef-dirty")))
    assert told["Backbone"] == "micro-vit, 32 px, weights sha256:0123"
    assert told["Seeds"] == "0, 1"
    assert told["Code"] == "fedprompt-bench 0.1.0, commit 0123456789ab-dirty"
    assert told["Learning rates"].startswith("untuned")


@pytest.mark.parametrize(
    ("rounds", "text"),
    [
        (None, "over the last rounds;"),
        (1.0, "over the last round (fewer than the papers' 10)"),
        (2.0, "over the last 2 rounds (fewer than the papers' 10)"),
        (10.0, "over the last 10 rounds;"),
    ],
)
def test_rounds_counted_are_named(rounds: float | None, text: str) -> None:
    suite = a_suite()
    assert text in reading(suite, results_frame(suite).assign(rounds_counted=rounds))[0]


def test_one_seed_has_no_spread() -> None:
    suite = a_suite()
    assert "seed 0 only" in reading(suite, results_frame(suite))[0]


def test_marks_are_explained_only_where_they_are_used() -> None:
    suite = a_suite(seeds=(0, 1))
    same = results_frame(suite).assign(average=0.5, average_exclude=0.5, worst_local=0.5, worst_local_exclude=0.5)
    assert not any(line.startswith(("[ ]", "(k/n)")) for line in reading(suite, same))
    other = same.assign(average_exclude=0.6)
    other.loc[0, "status"] = "missing"
    assert [line[:5] for line in reading(suite, other) if line.startswith(("[ ]", "(k/n)"))] == ["[ ]: ", "(k/n)"]


def test_a_recipe_that_is_not_the_default_is_named_with_its_settings() -> None:
    suite = a_suite(m=(1, 2))
    assert not any(line.startswith("Recipe") for line in reading(suite, results_frame(suite)))
    first, second = suite.settings
    warmed = dataclasses.replace(second, protocol={**second.protocol, "optimiser": "adamw", "warmup": 1})
    mixed = dataclasses.replace(suite, settings=(first, warmed))
    [line] = [line for line in reading(mixed, results_frame(mixed)) if line.startswith("Recipe")]
    assert line.endswith("raw features): optimiser adamw, warmup 1 (Feature shift, m=2).")


def test_how_firm_the_choices_are_stands_with_the_tuned_values() -> None:
    suite = a_suite(tuned={("fedvpt", "glyph-domains", "domains:m=1", "local"): {"lr": 0.3}})
    section = tuned_section(suite, results_frame(suite), ["2 of 9 choices lie at an edge."])
    assert section.text[1:] == ("2 of 9 choices lie at an edge.",)


def test_seeds_of_finals_are_named() -> None:
    suite = a_suite(tune=Tune(seeds=(100,), finals=(102, 103)))
    assert "on seeds 100 (finals on 102, 103)" in tuned_section(suite, results_frame(suite)).text[0]


def test_ties_are_told() -> None:
    suite = a_suite(tune=Tune(tie=0.02))
    assert tuned_section(suite, results_frame(suite)).text[0].endswith("within 2 points of the best, the gentlest won.")


def test_tuned_values_are_shown_by_method_and_setting() -> None:
    tuned = {("fedvpt", "glyph-domains", "domains:m=1", "local"): {"lr": 0.3}}
    suite = a_suite(m=(1, 2), tuned=tuned)
    section = tuned_section(suite, results_frame(suite))
    assert section.text == ("Tuned on held-out data: 1 of 4 cells, on seeds 100, which no table reports.",)
    [grid] = section.grids
    assert grid.rows == ("No prompt", "FedVPT")
    shown = {column.metric: [entry.text for entry in column.entries] for column in grid.columns}
    assert shown["domains:m=1, local head"] == ["–", "lr=0.3"]
    assert shown["domains:m=1, global head"] == shown["domains:m=2, local head"] == ["–", "–"]
    assert dict(facts(suite, results_frame(suite)))["Learning rates"] == "tuned on held-out data: 1 of 4 cells"


def test_partition_hashes_by_setting_and_seed() -> None:
    suite = a_suite(m=(1, 2), seeds=(0, 1))
    results = results_frame(suite)
    results["partition_hash"] = ["abcdef0123456789"[seed:] for seed in results["seed"]]
    results.loc[(results["partition"] == "domains:m=2") & (results["seed"] == 1), ["status", "partition_hash"]] = [
        "missing",
        "",
    ]
    [grid] = provenance(suite, results).grids
    assert grid.rows == ("glyph-domains domains:m=1", "glyph-domains domains:m=2")
    assert [[entry.text for entry in column.entries] for column in grid.columns] == [
        ["abcdef012345", "abcdef012345"],
        ["bcdef0123456", "–"],
    ]


def test_checksums_of_the_data_are_told() -> None:
    suite = a_suite()
    assert provenance(suite, results_frame(suite)).text[0] == "Data glyph-domains: checksum cd34."
