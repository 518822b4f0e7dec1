"""Accuracies of three clients over twelve rounds, chosen so that every wrong order gives another number."""

import pytest

from fedprompt.harness.measuring.evaluation import Record
from fedprompt.harness.measuring.metrics import per_client, per_round, records_frame, summarise

# Rounds 1 and 2 do not count. After that, client 0 is the worst of the odd rounds and client 1 of the even ones.
EARLY, ODD, EVEN = (0.0, 0.0, 0.0), (0.2, 0.6, 1.0), (0.8, 0.4, 1.0)
TWELVE = [EARLY, EARLY, *[ODD, EVEN] * 5]


def table(rounds: list[tuple[float, ...]], never: tuple[int, ...] = ()) -> list[Record]:
    return [
        Record(round_, client, "a", round(100 * accuracy), 100, client not in never)
        for round_, row in enumerate(rounds, start=1)
        for client, accuracy in enumerate(row)
    ]


def test_minimum_is_taken_inside_a_round_then_the_mean_over_rounds() -> None:
    summary = summarise(records_frame(table(TWELVE)), 12, 10, "finetune")
    assert summary["worst_local"] == pytest.approx(0.3)  # the minimum of the clients' means would be 0.5
    assert summary["average"] == pytest.approx((0.6 + 2.2 / 3) / 2)


def test_exactly_the_last_ten_rounds_count() -> None:
    rounds = [(1.0, 1.0, 1.0)] * 2 + [(0.0, 0.0, 0.0)] * 10
    summary = summarise(records_frame(table(rounds)), 12, 10, "finetune")
    assert (summary["average"], summary["rounds_counted"]) == (0.0, 10.0)


def test_fewer_rounds_than_ten_all_count_and_are_named() -> None:
    summary = summarise(records_frame(table([ODD, EVEN, ODD])), 3, 10, "finetune")
    assert summary["worst_local"] == pytest.approx((0.2 + 0.4 + 0.2) / 3)
    assert summary["rounds_counted"] == 3


def test_clients_weigh_the_same_whatever_their_size() -> None:
    records = [Record(1, 0, "a", 10, 10, True), Record(1, 1, "a", 0, 990, True)]
    assert summarise(records_frame(records), 1, 10, "finetune")["average"] == 0.5


def test_a_counted_round_without_evaluation_is_an_error() -> None:
    records = [record for record in table(TWELVE) if record.round != 7]
    with pytest.raises(ValueError, match="rounds 3 to 12 must all be evaluated"):
        summarise(records_frame(records), 12, 10, "finetune")


@pytest.mark.parametrize(("policy", "worst"), [("finetune", 0.3), ("as_is", 0.3), ("exclude", 0.5)])
def test_never_sampled_client_counts_by_policy(policy: str, worst: float) -> None:
    """Without client 0 the worst are 0.6 and 0.4."""
    summary = summarise(records_frame(table(TWELVE, never=(0,))), 12, 10, policy)
    assert summary["worst_local"] == pytest.approx(worst)
    assert summary["worst_local_exclude"] == pytest.approx(0.5)
    assert summary["never_sampled"] == 1


def test_a_client_is_left_out_only_until_it_takes_part() -> None:
    records = [Record(1, 0, "a", 0, 10, False), Record(1, 1, "a", 8, 10, True), Record(2, 0, "a", 2, 10, True)]
    rounds = per_round(records_frame([*records, Record(2, 1, "a", 8, 10, True)]), exclude_never_sampled=True)
    assert rounds["average"].tolist() == [0.8, 0.5]


def test_unseen_clients_have_a_number_of_their_own() -> None:
    records = [
        *table([(0.5, 0.7)]),
        Record(1, 2, "a", 10, 100, False, unseen=True),
        Record(1, 3, "a", 30, 100, False, True),
    ]
    summary = summarise(records_frame(records), 1, 10, "finetune")
    assert summary["average"] == pytest.approx(0.6)
    assert summary["unseen_average"] == pytest.approx(0.2)
    assert summary["never_sampled"] == 0


def test_a_client_without_test_data_is_in_no_mean() -> None:
    records = [Record(1, 0, "a", 0, 0, True), Record(1, 1, "a", 3, 4, True)]
    summary = summarise(records_frame(records), 1, 10, "finetune")
    assert (summary["average"], summary["worst_local"]) == (0.75, 0.75)


def test_domains_of_a_client_are_added_up_before_anything_else() -> None:
    """9 of 12 and 1 of 2, not the means of the domains' shares."""
    records = [Record(1, 0, "a", 9, 10, True), Record(1, 0, "b", 0, 2, True), Record(1, 1, "b", 1, 2, True)]
    summary = summarise(records_frame(records), 1, 10, "finetune")
    assert (summary["average"], summary["worst_local"]) == (0.625, 0.5)
    assert per_client(records_frame(records))["accuracy"].tolist() == [0.75, 0.5]


def test_the_finetuned_reading_has_keys_of_its_own() -> None:
    trained = table([(0.5, 0.7)] * 2)
    finetuned = [record._replace(correct=record.correct + 10, policy="global_then_ft") for record in trained]
    alone, both = (summarise(records_frame(records), 2, 10, "finetune") for records in (trained, trained + finetuned))
    assert {key: both[key] for key in alone} == alone
    assert both.keys() - alone.keys() == {f"{key}_ft" for key in alone}
    assert (both["average_ft"], both["worst_local_ft"]) == (pytest.approx(0.7), pytest.approx(0.6))


def test_a_summary_says_whether_accuracy_still_moves() -> None:
    rising = [(0.05 * round_,) for round_ in range(1, 13)]
    moving, settled = (
        summarise(records_frame(table(rounds)), 12, 10, "finetune") for rounds in (rising, [(0.6,)] * 12)
    )
    assert (moving["moving"], moving["drift"]) == (1.0, pytest.approx(10))
    assert (settled["moving"], settled["drift"]) == (0.0, 0.0)


def test_draws_of_the_sweep_do_not_count_in_tables() -> None:
    own = table([ODD, EVEN])
    swept = [record._replace(correct=0, samples=v) for record in own for v in (1, 2)]
    plain, mixed = (summarise(records_frame(records), 2, 10, "finetune") for records in (own, own + swept))
    assert {key: mixed[key] for key in plain} == plain


def test_each_v_has_its_own_mean_over_clients_then_rounds() -> None:
    own = table([ODD, EVEN])
    swept = [record._replace(samples=1) for record in own]
    swept += [record._replace(correct=100, samples=2) for record in own]
    summary = summarise(records_frame(own + swept), 2, 1, "finetune")
    assert summary["average_samples_1"] == pytest.approx(2.2 / 3)  # the last round alone
    assert summary["average_samples_2"] == 1.0
