from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.simulated_tables import CONTROL, simulated_table

from fedprompt.core.errors import UserError
from fedprompt.harness.report import components
from fedprompt.harness.report.inference import deciles, distinguishable, holm, paired, ranking


def frame(**rows: list[list[float]]) -> pd.DataFrame:
    """Accuracies given as one list of clients per seed."""
    values = {name: np.array(seeds).flatten() for name, seeds in rows.items()}
    seeds, clients = np.array(next(iter(rows.values()))).shape
    return pd.DataFrame(values, index=pd.MultiIndex.from_product([range(seeds), range(clients)]))


def coverage(tables: int, **world: Any) -> float:
    """How often intervals hold zero where all methods equal the control in truth."""
    differences = [item for i in range(tables) for item in paired(simulated_table(i, **world), CONTROL).values()]
    return float(np.mean([difference.low <= 0 <= difference.high for difference in differences]))


# -- estimate ---------------------------------------------------------------------------------------------------------


def test_difference_is_the_mean_over_clients_then_over_seeds_in_points() -> None:
    table = frame(a=[[0.5, 0.7], [0.6, 0.9]], b=[[0.4, 0.4], [0.5, 0.5]])
    assert paired(table, "b")["a"].points == pytest.approx(22.5)


def test_seeds_weigh_the_same_whatever_their_number_of_clients() -> None:
    table = frame(a=[[0.1, 0.2, 0.3], [0.5, 0.6, 0.7]], b=[[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    table.loc[(0, 2), "a"] = np.nan
    assert paired(table, "b")["a"].points == pytest.approx((15 + 60) / 2)


def test_only_seeds_that_both_rows_have_are_compared() -> None:
    table = frame(a=[[0.5, 0.7], [0.6, 0.8]], b=[[0.4, 0.4], [0.5, 0.5]])
    table.loc[1, "a"] = np.nan
    difference = paired(table, "b")["a"]
    assert (difference.seeds, difference.clients, difference.points) == (1, 2, pytest.approx(20))


def test_one_client_gives_no_interval() -> None:
    difference = paired(frame(a=[[0.5], [0.6]], b=[[0.4], [0.4]]), "b")["a"]
    assert np.isnan([difference.points, difference.low, difference.p, difference.adjusted]).all()
    assert not difference.significant


def test_unknown_control_names_the_rows() -> None:
    with pytest.raises(UserError, match="Known: a, b"):
        paired(frame(a=[[0.5]], b=[[0.4]]), "c")


def test_equal_data_give_equal_numbers_in_any_order_of_rows() -> None:
    table = simulated_table(3)
    again = paired(table[["method-2", CONTROL, "method-1", "method-3"]], CONTROL)
    assert paired(table, CONTROL) == {row: again[row] for row in ("method-1", "method-2", "method-3")}


# -- interval ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "world",
    [
        {"seeds": 2, "clients": 20, "images": 40},
        {"seeds": 2, "clients": 6, "images": 80},
        {"seeds": 3, "clients": 6, "images": 100, "same_clients": False},
        {"seeds": 5, "clients": 20, "images": 40, "seed_effect": 2},
    ],
)
def test_interval_covers_the_truth(world: dict[str, Any]) -> None:
    assert coverage(40, **world) >= 0.9  # of 120 intervals, which chance alone moves by three percent


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "clients"), [(2, 6), (2, 20), (5, 6)])
@pytest.mark.parametrize("same_clients", [True, False])
def test_interval_covers_the_truth_at_its_nominal_rate(seeds: int, clients: int, same_clients: bool) -> None:
    world = {"seeds": seeds, "clients": clients, "images": 60, "same_clients": same_clients, "rows": 6}
    assert 0.93 <= coverage(250, **world) <= 0.99  # of 1,250 intervals


def test_interval_of_two_seeds_is_not_absurdly_wide() -> None:
    tables = [paired(simulated_table(i, seed_effect=0, client_effect=0), CONTROL)["method-1"] for i in range(40)]
    error = np.std([difference.points for difference in tables])
    assert np.median([difference.high - difference.low for difference in tables]) < 1.6 * 2 * 1.96 * error


def test_seeds_that_disagree_widen_the_interval() -> None:
    table = simulated_table(0, seed_effect=0, client_effect=0)
    before = paired(table, CONTROL)["method-1"]
    table["method-1"] += np.where(table.index.get_level_values("seed") == 0, 0.1, -0.1)
    after = paired(table, CONTROL)["method-1"]
    assert after.points == pytest.approx(before.points)
    assert after.high - after.low > 2 * (before.high - before.low)


def test_interval_excludes_zero_just_where_p_is_below_five_percent() -> None:
    for i in range(20):
        difference = paired(simulated_table(i, gain=3), CONTROL)["method-1"]
        assert (difference.p < 0.05) == (difference.low > 0 or difference.high < 0)


# -- planted effects --------------------------------------------------------------------------------------------------


def test_a_copy_is_never_different() -> None:
    table = simulated_table(0, gain=20)
    table["copy"] = table[CONTROL]
    copy = paired(table, CONTROL)["copy"]
    assert (copy.points, copy.low, copy.high, copy.p, copy.adjusted) == (0, 0, 0, 1, 1)


def test_the_best_is_not_distinguishable_from_its_copy() -> None:
    table = simulated_table(0, gain=20).assign(copy=lambda rows: rows["method-1"])
    leader = distinguishable(table)
    assert leader is not None
    assert {leader.best, leader.second} == {"method-1", "copy"}
    assert not leader.distinguishable


def test_a_copy_does_not_narrow_the_intervals_of_others() -> None:
    table = simulated_table(0)
    with_copy = paired(table.assign(copy=table[CONTROL]), CONTROL)["method-1"]
    assert (with_copy.low, with_copy.high) == (paired(table, CONTROL)["method-1"].low, with_copy.high)


def fallen(table: pd.DataFrame) -> pd.Series:
    """The control, with a tenth of its accuracy in the first seed."""
    return table[CONTROL] * np.where(table.index.get_level_values("seed") == 0, 0.1, 1)


def test_a_collapsed_row_does_not_widen_the_intervals_of_others() -> None:
    table = simulated_table(0, seeds=3)
    beside = paired(table.assign(fallen=fallen(table)), CONTROL)["method-1"]
    alone = paired(table, CONTROL)["method-1"]
    assert (beside.low, beside.high) == (alone.low, alone.high)


def test_a_collapsed_row_is_as_uncertain_as_its_seeds() -> None:
    table = simulated_table(0, seeds=3)
    row = paired(table.assign(fallen=fallen(table)), CONTROL)["fallen"]
    assert row.points < -15
    assert row.low < -50
    assert row.high > 0


def test_five_points_are_found_with_two_seeds() -> None:
    """20 clients with 80 test images each; the method is right wherever the control is, and on 5 % more."""
    table = simulated_table(0, rows=12)
    gained = np.random.default_rng(0).binomial(80, 0.05, len(table)) / 80
    table["better"] = table[CONTROL] + gained
    better = paired(table, CONTROL)["better"]
    assert better.significant
    assert better.low < 5 < better.high


def test_five_points_are_mostly_found_even_if_no_image_is_shared() -> None:
    tables = [simulated_table(i, rows=2, seed_effect=0.3, client_effect=1, gain=5) for i in range(40)]
    assert np.mean([paired(table, CONTROL)["method-1"].significant for table in tables]) > 0.6


@pytest.mark.slow
def test_rows_that_are_alike_are_rarely_called_different() -> None:
    tables = [simulated_table(i, rows=6) for i in range(30)]
    assert np.mean([any(d.significant for d in paired(table, CONTROL).values()) for table in tables]) <= 0.05
    leaders = [distinguishable(table) for table in tables]
    assert not any(leader and leader.distinguishable for leader in leaders)


def test_a_clear_lead_is_distinguishable() -> None:
    leader = distinguishable(simulated_table(0, gain=20))
    assert leader is not None
    assert (leader.best, leader.distinguishable) == ("method-1", True)
    assert leader.difference.points > 10


# -- small parts ------------------------------------------------------------------------------------------------------


def test_holm_multiplies_by_what_is_left_and_never_falls() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_holm_ignores_what_was_not_compared() -> None:
    adjusted = holm([0.01, float("nan"), 0.6])
    assert adjusted[0] == pytest.approx(0.02)
    assert np.isnan(adjusted[1])


def test_ranking_leaves_out_rows_without_values() -> None:
    assert ranking(frame(a=[[0.1, 0.2]], b=[[0.3, 0.4]], c=[[np.nan, np.nan]])) == ["b", "a"]


def test_a_single_row_has_no_leader() -> None:
    assert distinguishable(frame(a=[[0.1, 0.2]])) is None


def test_deciles_are_over_clients_of_all_seeds() -> None:
    table = frame(a=[[0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [0.6, 0.7, 0.8, 0.9, 1.0, np.nan]])
    assert deciles(table["a"]) == pytest.approx((10, 50, 90))


def test_resamples_of_many_clients_are_drawn_in_pieces_without_changing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    table = simulated_table(0)
    whole = paired(table, CONTROL)
    monkeypatch.setattr(components, "RESAMPLED_AT_ONCE", 1000)
    assert paired(table, CONTROL) == whole
