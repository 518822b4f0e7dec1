import time

import numpy as np
import pytest
from support.simulated_tables import CONTROL, simulated_table

from fedprompt.harness.report.inference import paired
from fedprompt.harness.report.power import smallest_detectable


def test_more_clients_detect_smaller_differences() -> None:
    few, many = (smallest_detectable(simulated_table(0, clients=clients), CONTROL) for clients in (6, 60))
    assert many < few / 2


def test_more_comparisons_need_a_larger_difference() -> None:
    table = simulated_table(0)
    one, many = (smallest_detectable(table, CONTROL, comparisons) for comparisons in (1, 50))
    assert one < many


def test_test_images_bound_the_difference_from_below() -> None:
    """A copy has no residuals; (1.96 + 0.84)^2 = 7.85 of 2 x 20 x 10 images are 1.92 %."""
    table = simulated_table(0, rows=2)
    table["method-1"] = table[CONTROL]
    assert smallest_detectable(table, CONTROL, 1, test_images=10) == pytest.approx(1.92, abs=0.01)
    assert np.isnan(smallest_detectable(table, CONTROL, 1))


def test_a_collapsed_row_does_not_matter() -> None:
    table = simulated_table(0, seeds=3)
    fallen = table[CONTROL] * np.where(table.index.get_level_values("seed") == 0, 0.1, 1)
    alone, beside = (smallest_detectable(rows, CONTROL, comparisons=9) for rows in (table, table.assign(fallen=fallen)))
    assert beside == alone


def test_missing_clients_do_not_matter() -> None:
    table = simulated_table(0)
    table.loc[(0, 3), "method-1"] = np.nan
    assert smallest_detectable(table, CONTROL) == pytest.approx(
        smallest_detectable(simulated_table(0), CONTROL), rel=0.1
    )


def test_four_of_five_such_differences_are_found() -> None:
    tables = [simulated_table(i, rows=3) for i in range(20)]
    points = float(np.mean([smallest_detectable(table, CONTROL, 1) for table in tables]))
    planted = [paired(simulated_table(100 + i, rows=3, gain=points), CONTROL)["method-1"] for i in range(60)]
    assert 0.7 <= np.mean([difference.p < 0.05 for difference in planted]) <= 0.95


def test_a_whole_table_takes_less_than_a_second() -> None:
    table = simulated_table(0, rows=13, clients=20, seeds=3)
    start = time.process_time()
    assert smallest_detectable(table, CONTROL) == smallest_detectable(table, CONTROL)
    assert time.process_time() - start < 2
