import math

import pandas as pd
import pytest

from fedprompt.harness.evaluation import Record
from fedprompt.harness.metrics import per_round, records_frame, summarise


def table() -> pd.DataFrame:
    """Three clients, twelve rounds, ten test images each; the worst client alternates between 0 and 1.

    In rounds 1 and 2 nobody is right. Client 2 has taken part from round 4 on, the others always.
    """
    records = []
    for round_ in range(1, 13):
        correct = (0, 0, 0) if round_ < 3 else (2, 6, 10) if round_ % 2 else (6, 4, 8)
        records += [Record(round_, client, hits, 10, client < 2 or round_ > 3) for client, hits in enumerate(correct)]
    return records_frame(records)


def test_average_and_worst_local_of_a_round() -> None:
    rounds = per_round(table())
    assert rounds.loc[3].tolist() == pytest.approx([0.6, 0.2])
    assert rounds.loc[4].tolist() == pytest.approx([0.6, 0.4])


def test_reported_values_are_means_over_the_last_ten_rounds() -> None:
    summary = summarise(table(), rounds=12, last=10, never_sampled="finetune")
    assert summary["average"] == pytest.approx(0.6)
    assert summary["worst_local"] == pytest.approx(0.3)  # of 0.2 and 0.4 in turn
    assert summary["rounds_counted"] == 10


def test_the_minimum_is_taken_before_the_mean() -> None:
    wrong_order = table().query("round >= 3").groupby("client")["accuracy"].mean().min()
    assert wrong_order == pytest.approx(0.4)
    assert summarise(table(), 12, 10, "finetune")["worst_local"] != pytest.approx(wrong_order)


def test_fewer_rounds_are_all_counted_and_named() -> None:
    first = table().query("round <= 4")
    summary = summarise(first, rounds=4, last=10, never_sampled="finetune")
    assert summary["average"] == pytest.approx(0.3)
    assert summary["rounds_counted"] == 4


def test_clients_that_never_took_part_are_left_out_where_asked() -> None:
    summary = summarise(table(), 12, 10, "finetune")
    assert summary["average_exclude"] == pytest.approx((0.4 + 9 * 0.6) / 10)  # round 3 without client 2
    assert summarise(table(), 12, 10, "exclude")["average"] == summary["average_exclude"]
    assert summarise(table(), 12, 10, "as_is")["average"] == summary["average"]


def test_never_sampled_clients_are_counted() -> None:
    assert summarise(table().query("round <= 3"), 3, 10, "finetune")["never_sampled"] == 1
    assert summarise(table(), 12, 10, "finetune")["never_sampled"] == 0


def test_clients_count_equally_whatever_their_size() -> None:
    frame = records_frame([Record(1, 0, 1, 1, True), Record(1, 1, 0, 99, True)])
    assert summarise(frame, 1, 10, "finetune")["average"] == 0.5


def test_unseen_clients_are_reported_apart() -> None:
    unseen = records_frame([Record(12, 7, 9, 10, False, True), Record(12, 8, 7, 10, False, True)])
    summary = summarise(pd.concat([table(), unseen]), 12, 10, "finetune")
    assert summary["unseen_average"] == pytest.approx(0.8)
    assert summary["average"] == pytest.approx(0.6)
    assert summary["never_sampled"] == 0


def test_a_client_without_test_data_has_no_accuracy() -> None:
    frame = records_frame([Record(1, 0, 0, 0, True), Record(1, 1, 3, 4, True)])
    assert math.isnan(frame["accuracy"][0])
    assert summarise(frame, 1, 10, "finetune")["worst_local"] == 0.75


def test_a_round_that_was_not_evaluated_is_noticed() -> None:
    with pytest.raises(ValueError, match="rounds 3 to 12 must all be evaluated"):
        summarise(table().query("round != 7"), 12, 10, "finetune")
