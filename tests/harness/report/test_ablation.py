"""Paired differences of two seeds and three clients, by hand."""

import dataclasses

import pandas as pd
import pytest
from support.report_suites import a_setting, a_suite, csv_of, make_numbers, records_frame, results_frame

from fedprompt.harness.report.inference import Difference, paired
from fedprompt.harness.report.numbers import PairedDifference
from fedprompt.harness.report.tables import ablation, signed
from fedprompt.harness.report.values import by_row, client_values
from fedprompt.harness.running.suite import Suite

D, FULL = "pfedbayespt-d", "pfedbayespt"
# Round 1 does not count. Differences of the clients: 10, 20, 30 points for seed 0 and 10, 0, -10 for seed 1.
ACCURACIES = {
    (0, D, 0): [[0.0, 0.0, 0.0], [0.6, 0.7, 0.8]],
    (0, FULL, 0): [[1.0, 1.0, 1.0], [0.5, 0.5, 0.5]],
    (0, D, 1): [[0.0, 0.0, 0.0], [0.6, 0.5, 0.4]],
    (0, FULL, 1): [[1.0, 1.0, 1.0], [0.5, 0.5, 0.5]],
}
AVERAGES = [0.7, 0.5, 0.5, 0.5]  # -D with seeds 0 and 1, then the full method


def a_study(**protocol: object) -> Suite:
    setting = a_setting(
        "m=6",
        (D, FULL),
        table="Ablation",
        kind="ablation",
        reference=FULL,
        protocol={"rounds": 2, "last": 1, **protocol},
    )
    return a_suite(seeds=(0, 1), settings=(setting,))


def differences(suite: Suite, results: pd.DataFrame, records: pd.DataFrame) -> dict[str, PairedDifference]:
    """By row."""
    return {number.row: number.paired for number in make_numbers(suite, results, records) if number.paired}


def interval_of(suite: Suite, records: pd.DataFrame) -> Difference:
    """Of the row without the mixture, over clients."""
    over_clients = differences(suite, results_frame(suite, average=AVERAGES), records)[D].over_clients
    assert over_clients
    return over_clients


def test_differences_are_taken_seed_by_seed() -> None:
    suite = a_study()
    paired = differences(suite, results_frame(suite, average=AVERAGES), records_frame(ACCURACIES))
    assert paired.keys() == {D}  # none for the reference
    assert paired[D].by_seed == pytest.approx({0: 20.0, 1: 0.0})


def test_interval_is_that_of_paired_inference() -> None:
    suite = a_study()
    records = records_frame(ACCURACIES)
    difference = interval_of(suite, records)
    expected = paired(by_row(client_values(suite.settings, records)), FULL)[D]
    assert (difference.clients, difference.low, difference.high) == (3, expected.low, expected.high)
    assert difference.low < 0 < difference.high  # seeds differ by 20 points


def test_interval_of_one_seed() -> None:
    suite = a_study()
    results = results_frame(suite, average=AVERAGES)
    results.loc[results["seed"] == 1, "status"] = "missing"
    records = records_frame({key: table for key, table in ACCURACIES.items() if key[2] == 0})
    difference = differences(suite, results, records)[D]
    assert difference.by_seed == pytest.approx({0: 20.0})
    assert difference.over_clients
    assert difference.over_clients.low < 20 < difference.over_clients.high


def test_a_client_is_paired_with_itself() -> None:
    """Accuracies that differ widely between clients, differences that do not."""
    suite = a_study()
    accuracies = {
        (0, D, 0): [[], [0.1, 0.5, 0.9]],
        (0, FULL, 0): [[], [0.2, 0.6, 1.0]],
    }
    difference = interval_of(suite, records_frame(accuracies))
    assert (difference.low, difference.high) == pytest.approx((-10.0, -10.0))


@pytest.mark.parametrize(("policy", "clients"), [("finetune", 3), ("as_is", 3), ("exclude", 2)])
def test_clients_that_never_took_part_count_by_policy(policy: str, clients: int) -> None:
    suite = a_study(never_sampled=policy)
    records = records_frame(ACCURACIES)
    records["participated"] = records["client"] != 0
    assert interval_of(suite, records).clients == clients


def test_unseen_clients_and_other_v_are_not_counted() -> None:
    suite = a_study()
    records = records_frame(ACCURACIES)
    more = pd.concat([records, records.assign(client=7, unseen=True), records.assign(samples=1, accuracy=0.0)])
    assert interval_of(suite, more) == interval_of(suite, records)


def table_of(suite: Suite, results: pd.DataFrame, records: pd.DataFrame) -> list[list[str]]:
    grid = ablation(suite, "Ablation", make_numbers(suite, results, records))
    return [[column.metric, *(entry.text for entry in column.entries)] for column in grid.columns]


def test_the_table() -> None:
    suite = a_study()
    results = results_frame(suite, average=AVERAGES, average_exclude=AVERAGES)
    records = records_frame(ACCURACIES)
    interval = interval_of(suite, records)
    assert table_of(suite, results, records) == [
        ["Average", "60.00±14.14", "50.00±0.00"],
        ["Difference", "+10.00±14.14", "reference"],
        ["Each seed", "+20.00, +0.00", ""],
        ["95 % CI", f"{signed(interval.low)} to {signed(interval.high)}", ""],
        ["Clients", "3", ""],
    ]


def test_without_the_reference_differences_are_missing() -> None:
    suite = a_study()
    results = results_frame(suite, average=AVERAGES, average_exclude=AVERAGES)
    results.loc[results["row"] == FULL, "status"] = "failed"
    table = table_of(suite, results, records_frame(ACCURACIES))
    assert [column[1:] for column in table[:2]] == [["60.00±14.14", "failed"], ["–", "reference"]]


@pytest.mark.parametrize(("reference", "explained"), [(FULL, ["Difference", "95 % CI"]), ("", [])])
def test_differences_are_explained_where_there_are_any(reference: str, explained: list[str]) -> None:
    suite = a_study()
    suite = dataclasses.replace(suite, settings=(dataclasses.replace(suite.settings[0], reference=reference),))
    results = results_frame(suite, average=AVERAGES, average_exclude=AVERAGES)
    grid = ablation(suite, "Ablation", make_numbers(suite, results, records_frame(ACCURACIES)))
    assert [note.text.partition(":")[0] for note in grid.notes] == explained


def test_fewer_seeds_than_planned_are_marked() -> None:
    suite = a_study()
    results = results_frame(suite, average=AVERAGES, average_exclude=AVERAGES)
    results.loc[(results["row"] == D) & (results["seed"] == 1), "status"] = "missing"
    assert table_of(suite, results, records_frame(ACCURACIES))[1][1] == "+20.00 (1/2)"


def test_differences_are_in_the_summary() -> None:
    suite = a_study()
    results = results_frame(suite, average=AVERAGES)
    line = csv_of(suite, results, records_frame(ACCURACIES)).set_index("row").loc[D]
    assert line[["paired_difference", "paired_seeds", "paired_clients"]].tolist() == pytest.approx([10.0, 2, 3])
    assert line["paired_std"] == pytest.approx(20 / 2**0.5)


def test_every_policy_has_its_own_differences() -> None:
    setting = a_study().settings[0]
    suite = a_suite(seeds=(0, 1), settings=(dataclasses.replace(setting, policies=("local", "global")),))
    results = results_frame(suite).assign(average=0.5, average_exclude=0.5)
    results.loc[(results["policy"] == "global") & (results["row"] == D), ["average", "average_exclude"]] = 0.6
    records = pd.concat([records_frame(ACCURACIES, policy, policy) for policy in ("local", "global")])
    table = table_of(suite, results, records)
    assert [column[1] for column in table if column[0] == "Difference"] == ["+0.00±0.00", "+10.00±0.00"]
