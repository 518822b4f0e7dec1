import numpy as np
import pandas as pd
import pytest

from fedprompt.harness.report.against import compare_runs

CELLS = [("m=1", f"row-{i}") for i in range(8)]


def recorded(number: int, seeds: int = 3) -> "pd.Series[float]":
    """Eight cells whose seeds vary by one point."""
    rng = np.random.default_rng(number)
    values = {(*cell, seed): 0.5 + rng.normal(0, 0.01) for cell in CELLS for seed in range(seeds)}
    return pd.Series(values).rename_axis(["setting", "row", "seed"])


def test_the_same_runs_never_differ() -> None:
    table = compare_runs(recorded(0), recorded(0))
    assert len(table) == 8
    assert (table["adjusted"] == 1).all()
    assert not table["differs"].any()


def test_other_seeds_of_the_same_cells_do_not_differ() -> None:
    assert not compare_runs(recorded(0), recorded(1))["differs"].any()


def test_a_cell_that_moved_by_more_than_its_seeds_is_found() -> None:
    theirs = recorded(1)
    theirs.loc[("m=1", "row-3")] += 0.06
    table = compare_runs(recorded(0), theirs)
    assert list(table.index[table["differs"]]) == [("m=1", "row-3")]
    assert table.loc[("m=1", "row-3"), "difference"] == pytest.approx(-6, abs=2)


def test_a_cell_of_one_side_has_no_difference() -> None:
    table = compare_runs(recorded(0), recorded(1).drop(("m=1", "row-0")))
    assert np.isnan(table.loc[("m=1", "row-0"), "difference"])
    assert not table.loc[("m=1", "row-0"), "differs"]


def test_one_seed_everywhere_tells_nothing() -> None:
    table = compare_runs(recorded(0, seeds=1), recorded(1, seeds=1))
    assert table["p"].isna().all()
    assert not table["differs"].any()
