import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import pytest
from support.report_suites import a_setting, a_suite, every_kind, make_numbers, records_frame, results_frame

from fedprompt.harness.report.document import Entry, Grid, Note
from fedprompt.harness.report.numbers import Number
from fedprompt.harness.report.tables import MOVING, result_entry, results, signed, slug, tables_of, unique, vsweep
from fedprompt.harness.running.suite import Suite


def number(**change: Any) -> Number:
    suite = a_suite(("fedvpt",))
    [average, _] = make_numbers(suite, results_frame(suite, average=[0.61234], average_exclude=[0.61234]))
    values = {"std": 0.5, "std_exclude": 0.5, "seeds": 3, "seeds_expected": 3, **change}
    return dataclasses.replace(average, **values)


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        ({}, Entry("61.23±0.50")),
        ({"std": float("nan"), "std_exclude": float("nan")}, Entry("61.23")),  # one seed
        ({"mean_exclude": 62.0}, Entry("61.23±0.50", "[62.00±0.50]")),
        ({"mean_exclude": float("nan")}, Entry("61.23±0.50")),  # none ever took part
        ({"leads": True}, Entry("61.23±0.50", bold=True)),
        ({"seeds": 2, "leads": True}, Entry("61.23±0.50 (2/3)")),  # never bold
        ({"moving": 0.5, "drift": 1.2}, Entry("61.23±0.50", marks="↑")),
        ({"moving": 1.0, "drift": -1.2}, Entry("61.23±0.50", marks="↓")),
        ({"moving": 1.0, "drift": 1.2, "untuned": True}, Entry("61.23±0.50", marks="↑‡")),
        ({"moving": 0.4, "drift": 1.2}, Entry("61.23±0.50")),  # in fewer than half of the seeds
        ({"moving": 1.0, "drift": 1.2, "metric": "worst_local"}, Entry("61.23±0.50")),
        ({"status": "failed"}, Entry("failed")),
        ({"status": "missing", "mean": float("nan")}, Entry("–")),
        ({"mean": float("nan")}, Entry("–")),
    ],
)
def test_an_entry(change: dict[str, object], entry: Entry) -> None:
    assert result_entry(number(**change)) == entry


def tables(suite: Suite, frame: pd.DataFrame, records: pd.DataFrame | None = None) -> list[tuple[Grid, ...]]:
    for metric in ("average", "worst_local"):
        frame[f"{metric}_exclude"] = frame[metric]
    return [grids for _, grids in results("Feature shift", make_numbers(suite, frame, records))]


def shown(suite: Suite, **numbers: list[float]) -> Grid:
    """The only table, without records."""
    [[grid]] = tables(suite, results_frame(suite, **numbers))
    return grid


POLICIES = ("local", "global", "global_then_ft")
CLIENTS = [0.4, 0.5, 0.5, 0.6, 0.7, 0.6]
BETTER = [0.46, 0.55, 0.54, 0.65, 0.76, 0.64]  # by 5 points on average, whatever the client


def by_policy(**levels: list[float]) -> tuple[Suite, pd.DataFrame]:
    """A suite with all policies and its records; ``levels`` are the accuracies of clients, by method."""
    methods = [name.replace("_", "-") for name in levels]
    suite = a_suite(settings=(a_setting(methods=methods, policies=POLICIES),), seeds=(0, 1))
    accuracies = {
        (0, method, seed): [clients] * 2
        for method, clients in zip(methods, levels.values(), strict=True)
        for seed in suite.seeds
    }
    return suite, pd.concat([records_frame(accuracies, policy, policy) for policy in POLICIES])


def entries(grid: Grid) -> dict[tuple[str, str], list[str]]:
    return {(c.setting, c.metric): [entry.text + entry.marks for entry in c.entries] for c in grid.columns}


def test_policies_stand_side_by_side_with_gains_over_no_prompt() -> None:
    suite, records = by_policy(head_tune=CLIENTS, fedvpt=BETTER)
    [(means, spread)] = tables(suite, results_frame(suite).assign(average=0.5, worst_local=0.4), records)
    assert (means.title, means.rows) == ("Feature shift: m=1", ("No prompt", "FedVPT"))
    heads = ["Local head", "Global head", "Global head, fine-tuned"]
    assert [setting for setting, _ in means.groups] == [*heads, "Sent"]
    for head in heads:
        control, gain = entries(means)[head, "Gain"]
        assert control == "control"
        assert re.fullmatch(r"\+5\.0 \[4\.\d, 5\.\d\]†", gain)
    assert [column.metric for column in spread.columns] == ["Worst Local", "10 %", "50 %", "90 %"] * 3
    assert entries(spread)["Global head", "50 %"] == ["55.0", "59.5"]
    assert "adjusted" in means.notes[0].text


def test_a_gain_is_over_the_control_of_the_same_policy() -> None:
    suite, records = by_policy(head_tune=CLIENTS, fedvpt=BETTER)
    better_head = (records["policy"] == "global") & (records["row"] == "head-tune")
    records["accuracy"] += 0.1 * better_head
    [(means, _)] = tables(suite, results_frame(suite).assign(average=0.5, worst_local=0.4), records)
    assert entries(means)["Local head", "Gain"][1].startswith("+5.0 [")
    assert entries(means)["Global head", "Gain"][1].startswith("−5.0 [−5.")


def test_the_distinguishable_best_is_bold_and_nothing_else() -> None:
    suite, records = by_policy(head_tune=CLIENTS, fedvpt=BETTER, fedvpt_d=CLIENTS)
    [grids] = tables(suite, results_frame(suite).assign(average=0.5, worst_local=0.4), records)
    bold = [
        (column.metric, grid.rows[row])
        for grid in grids
        for column in grid.columns
        for row, entry in enumerate(column.entries)
        if entry.bold
    ]
    assert bold == [("Average", "FedVPT")] * 3


def test_a_copy_is_neither_bold_nor_different() -> None:
    suite, records = by_policy(head_tune=CLIENTS, fedvpt=BETTER, fedvpt_d=BETTER)
    [(means, spread)] = tables(suite, results_frame(suite).assign(average=0.5, worst_local=0.4), records)
    assert not any(entry.bold for grid in (means, spread) for column in grid.columns for entry in column.entries)
    assert len({*entries(means)["Local head", "Gain"][1:]}) == 1
    suite, records = by_policy(head_tune=CLIENTS, fedvpt=CLIENTS)
    [(means, _)] = tables(suite, results_frame(suite).assign(average=0.5, worst_local=0.4), records)
    assert entries(means)["Local head", "Gain"] == ["control", "+0.0 [0.0, 0.0]"]


def test_a_higher_mean_that_cannot_be_told_apart_is_not_bold() -> None:
    suite, records = by_policy(head_tune=CLIENTS, fedvpt=[0.9, 0.2, 0.5, 0.6, 0.7, 0.6])
    [(means, _)] = tables(suite, results_frame(suite).assign(average=[0.5] * 6 + [0.6] * 6, worst_local=0.4), records)
    assert not any(entry.bold for column in means.columns for entry in column.entries)
    assert entries(means)["Local head", "Gain"][1].startswith("+3.3 [−")
    assert means.notes == ()  # nothing differs


def test_cells_that_still_move_are_marked_and_the_rule_is_stated() -> None:
    suite, records = by_policy(head_tune=CLIENTS, fedvpt=BETTER)
    frame = results_frame(suite).assign(average=0.5, worst_local=0.4)
    rising = (frame["row"] == "fedvpt") & (frame["policy"] == "global")
    frame.loc[rising, ["moving", "drift"]] = [1.0, 2.0]
    [(means, _)] = tables(suite, frame, records)
    assert entries(means)["Global head", "Average"] == ["50.00±0.00", "50.00±0.00↑"]
    assert entries(means)["Local head", "Average"] == ["50.00±0.00", "50.00±0.00"]
    assert (means.notes[-1].mark, means.notes[-1].text) == ("↑", MOVING)


def test_with_one_policy_settings_stand_side_by_side_with_gains_where_there_is_a_control() -> None:
    suite = a_suite(settings=(a_setting("m=1"), a_setting("m=2", ("fedvpt",))), seeds=(0, 1))
    accuracies = {
        (column, row, seed): [CLIENTS] * 2
        for column, row in ((0, "head-tune"), (0, "fedvpt"), (1, "fedvpt"))
        for seed in (0, 1)
    }
    frame = results_frame(suite).assign(average=0.5, worst_local=0.4, reading="global")
    [(means, spread)] = tables(suite, frame, records_frame(accuracies))
    heads = [(column.setting, column.metric) for column in means.columns]
    assert heads == [
        *[("m=1", metric) for metric in ("Average", "Gain", "Worst Local")],
        *[("m=2", metric) for metric in ("Average", "Worst Local")],
        ("Sent", ""),
    ]
    assert [column.metric for column in spread.columns] == ["10 %", "50 %", "90 %"] * 2


def test_methods_of_different_heads_have_different_controls() -> None:
    """As in their papers: FedVPT has a local head, No prompt a global one."""
    suite = a_suite(("head-tune", "fedvpt"))
    records = records_frame({(0, row, 0): [CLIENTS] * 2 for row in ("head-tune", "fedvpt")})
    [(means, _)] = tables(suite, results_frame(suite, average=[0.5, 0.5], worst_local=[0.5, 0.5]), records)
    assert entries(means)["m=1", "Gain"] == ["control", "–"]
    text = "No gain (–): the table has no finished row of no prompt with a local head, the control."
    assert Note("", text) in means.notes


def test_why_one_client_has_no_gain_is_said() -> None:
    suite, records = by_policy(head_tune=CLIENTS[:1], fedvpt=BETTER[:1])
    [(means, _)] = tables(suite, results_frame(suite).assign(average=0.5, worst_local=0.4), records)
    assert entries(means)["Local head", "Gain"] == ["control", "–"]
    assert means.notes == (Note("", "No gain (–): fewer than two clients can be compared with the control."),)


def test_where_every_row_has_its_control_no_dash_is_explained() -> None:
    suite, records = by_policy(head_tune=CLIENTS, fedvpt=BETTER)
    [(means, _)] = tables(suite, results_frame(suite).assign(average=0.5, worst_local=0.4), records)
    assert not any("–" in note.text for note in means.notes)


def test_settings_stand_side_by_side_then_what_is_sent() -> None:
    grid = shown(a_suite(m=(1, 2)), average=[0.5] * 4, worst_local=[0.5] * 4)
    heads = [(column.setting, column.metric) for column in grid.columns]
    assert heads[:2] == [("m=1", "Average"), ("m=1", "Worst Local")]
    assert heads[2:] == [("m=2", "Average"), ("m=2", "Worst Local"), ("Sent", "")]
    assert grid.columns[-1].entries[0].text == "200 B"


def test_sent_is_a_range_where_settings_differ() -> None:
    suite = a_suite(("fedvpt",), m=(1, 2))
    assert shown(suite, floats_up=[50.0, 500.0]).columns[-1].entries[0].text == "200 B to 2.0 kB"


def test_a_row_that_a_setting_lacks_is_empty_there() -> None:
    suite = a_suite(settings=(a_setting("m=1"), a_setting("m=2", ("fedvpt", "sgpt"))))
    grid = shown(suite, average=[0.1, 0.2, 0.3, 0.4], worst_local=[0.1, 0.2, 0.3, 0.4])
    assert grid.rows == ("No prompt", "FedVPT", "SGPT")
    assert [entry.text for entry in grid.columns[0].entries] == ["10.00", "20.00", ""]
    assert [entry.text for entry in grid.columns[2].entries] == ["", "30.00", "40.00"]


def test_unseen_clients_have_one_column_a_setting() -> None:
    suite = a_suite(settings=(a_setting(kind="unseen"),))
    [(_, [grid])] = results("Unseen", make_numbers(suite, results_frame(suite, unseen_average=[0.25, 0.5])))
    [column] = grid.columns
    assert (column.metric, [entry.text for entry in column.entries]) == ("Unseen Average", ["25.00", "50.00"])


def test_vsweep_has_a_column_a_v_and_names_settings_where_there_are_several() -> None:
    settings = tuple(a_setting(f"m={m}", ("pfedbayespt",), kind="vsweep") for m in (1, 2))
    suite = a_suite(settings=settings)
    values = {f"average_samples_{v}": [0.5 + 0.01 * v, 0.4] for v in range(1, 11)}
    grid = vsweep("V-sweep", make_numbers(suite, results_frame(suite, **values)))
    assert grid.rows == ("pFedBayesPT, m=1", "pFedBayesPT, m=2")
    assert [column.metric for column in grid.columns] == [f"V={v}" for v in range(1, 11)]
    assert [column.entries[0].text for column in grid.columns][::9] == ["51.00", "60.00"]


def test_unseen_clients_have_gains_in_the_last_state() -> None:
    suite = a_suite(settings=(a_setting(kind="unseen", policies=("local",)),))
    records = records_frame(
        {(0, "head-tune", 0): [[0.9] * 6, CLIENTS], (0, "fedvpt", 0): [[0.1] * 6, BETTER]}, "local", "local"
    )
    frame = make_numbers(suite, results_frame(suite, unseen_average=[0.55, 0.6]), records.assign(unseen=True))
    [(_, (means, _))] = results("Unseen", frame)
    assert entries(means)["m=1", "Gain"][1].startswith("+5.0 [")


def test_vsweep_names_policies_where_there_are_several() -> None:
    suite = a_suite(settings=(a_setting(methods=("pfedbayespt",), kind="vsweep", policies=POLICIES),))
    grid = vsweep("V-sweep", make_numbers(suite, results_frame(suite)))
    heads = ("local head", "global head", "global head, fine-tuned")
    assert grid.rows == tuple(f"pFedBayesPT, {head}" for head in heads)


def test_a_table_is_a_heading_and_a_kind() -> None:
    suite = every_kind()
    kinds = list(tables_of(make_numbers(suite, results_frame(suite))))
    assert kinds[0] == ("Feature shift", "heterogeneity")
    assert kinds[1:] == [("Unseen", "unseen"), ("Ablation", "ablation"), ("V-sweep", "vsweep")]


@pytest.mark.parametrize(("value", "text"), [(1.5, "+1.50"), (-0.126, "−0.13"), (0.0, "+0.00")])
def test_differences_have_a_sign(value: float, text: str) -> None:
    assert signed(value) == text


def test_names_of_files() -> None:
    assert slug("Label shift (CIFAR-100, s classes)") == "label-shift"
    assert slug("(?)") == "table"
    assert unique(["a", "b", "a", "a", "a-2"]) == ["a", "b", "a-2", "a-3", "a-2-2"]


def shared_records(accuracies: Mapping[tuple[str, str], Sequence[float]]) -> pd.DataFrame:
    """Two seeds, in which clients have these accuracies, by row and test set."""
    frames = [
        records_frame({(0, row, seed): [levels] * 2 for seed in (0, 1)}, "global").assign(test_set=test_set)
        for (row, test_set), levels in accuracies.items()
    ]
    return pd.concat(frames, ignore_index=True)


def test_base_to_novel_shows_all_means_and_the_gain_on_novel_classes() -> None:
    setting = a_setting("half", kind="novel", partition="domains:m=1,novel=half", policies=("global",))
    suite = a_suite(seeds=(0, 1), settings=(setting,))
    nan = float("nan")
    numbers = results_frame(
        suite,
        average=[0.8, 0.8, 0.9, 0.9],
        base_average=[0.7, 0.7, 0.6, 0.6],
        novel_average=[0.5, 0.5, 0.4, 0.4],
        harmonic_mean=[0.64, 0.64, nan, nan],
    )
    levels = {("head-tune", "novel"): [0.5, 0.5, 0.5], ("fedvpt", "novel"): [0.41, 0.4, 0.39]}
    records = shared_records({**levels, ("head-tune", "local"): [0.8] * 3, ("fedvpt", "local"): [0.9] * 3})
    [(_, grids)] = results("Base to novel", make_numbers(suite, numbers, records))
    table = grids[0]
    assert [column.metric for column in table.columns] == ["Average", "Base", "Novel", "Gain", "Harmonic Mean"]
    texts = {row: [column.entries[place].text for column in table.columns] for place, row in enumerate(table.rows)}
    assert texts["FedVPT"][:3] == ["90.00±0.00", "60.00±0.00", "40.00±0.00"]
    assert texts["FedVPT"][3].startswith("−10.0 [")
    assert texts["FedVPT"][4] == "n/a"
    assert texts["No prompt"][3] == "control"
