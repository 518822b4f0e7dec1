"""Which clients and rounds count: three rounds of three clients, by hand."""

import pandas as pd
import pytest
from support.report_suites import a_setting, records_frame

from fedprompt.harness.report.values import client_values, round_values
from fedprompt.harness.running.suite import Setting

RECORDS = records_frame({(0, "fedvpt", 0): [[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.6, 0.7, 0.8]]})


def settings(**protocol: object) -> tuple[Setting, ...]:
    return (a_setting(methods=("fedvpt",), protocol={"rounds": 3, "last": 2, **protocol}),)


@pytest.mark.parametrize(("last", "first_client"), [(1, 0.6), (2, 0.5), (3, 1.1 / 3), (10, 1.1 / 3)])
def test_the_last_rounds_are_reported_or_all_of_them(last: int, first_client: float) -> None:
    assert client_values(settings(last=last), RECORDS)["value"].iloc[0] == pytest.approx(first_client)


def test_a_clients_accuracy_is_its_mean_over_reported_rounds() -> None:
    assert client_values(settings(), RECORDS)["value"].tolist() == pytest.approx([0.5, 0.6, 0.7])


@pytest.mark.parametrize(("policy", "clients"), [("finetune", [0, 1, 2]), ("as_is", [0, 1, 2]), ("exclude", [1, 2])])
def test_clients_that_never_took_part_count_by_policy(policy: str, clients: list[int]) -> None:
    records = RECORDS.assign(participated=RECORDS["client"] != 0)
    assert client_values(settings(never_sampled=policy), records)["client"].tolist() == clients


def test_each_setting_has_its_own_protocol() -> None:
    both = (*settings(never_sampled="exclude"), *settings(last=1))
    records = pd.concat([RECORDS, RECORDS.assign(column=1)]).assign(participated=lambda frame: frame["client"] == 0)
    accuracies = client_values(both, records)
    assert accuracies.groupby("column")["value"].apply(list).tolist() == [
        pytest.approx([0.5]),
        pytest.approx([0.6, 0.7, 0.8]),
    ]


def test_unseen_clients_other_draws_and_clients_without_test_data_have_no_accuracy() -> None:
    others = [RECORDS.assign(unseen=True), RECORDS.assign(samples=3), RECORDS.assign(client=9, accuracy=float("nan"))]
    assert client_values(settings(), pd.concat([RECORDS, *others]))["client"].tolist() == [0, 1, 2]


def test_accuracy_of_a_round_is_the_mean_over_clients() -> None:
    accuracies = round_values(settings(), RECORDS)
    assert accuracies["round"].tolist() == [1, 2, 3]
    assert accuracies["value"].tolist() == pytest.approx([0.2, 0.5, 0.7])


def test_without_records_there_are_no_accuracies() -> None:
    assert client_values(settings(), RECORDS[:0]).empty
    assert round_values(settings(), RECORDS[:0]).empty


def test_any_measure_of_the_records_has_values() -> None:
    records = RECORDS.assign(brier=1 - RECORDS["accuracy"])
    assert client_values(settings(), records, "brier")["value"].tolist() == pytest.approx([0.5, 0.4, 0.3])
