import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from fedprompt.harness.report.figures.ranks import figures_ranks
from fedprompt.harness.report.ranks import critical_difference, mean_ranks

matplotlib.use("Agg")
ROWS = [f"row-{i}" for i in range(5)]


def steady(settings: int) -> pd.DataFrame:
    """Row 0 is the best of every setting, row 4 the worst."""
    return pd.DataFrame({s: np.linspace(0.9, 0.5, 5) + 0.01 * s for s in range(settings)}, index=ROWS)


def test_critical_difference_is_that_of_the_book() -> None:
    """Demšar (2006): four classifiers on 14 data sets, q = 2.569."""
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.01)


def test_mean_ranks_start_with_the_best_and_ties_share() -> None:
    table = pd.DataFrame({"x": [0.5, 0.5, 0.9], "y": [0.4, 0.6, 0.8]}, index=["a", "b", "c"])
    assert mean_ranks(table).ranks.to_dict() == {"c": 1.0, "b": 2.25, "a": 2.75}


def test_few_settings_give_no_test_and_no_diagram() -> None:
    ranks = mean_ranks(steady(4))
    assert not ranks.enough
    assert ranks.verdict == "Mean ranks over 4 settings say nothing; it takes at least 5."
    assert list(figures_ranks(ranks)) == []


def test_a_steady_order_is_found() -> None:
    ranks = mean_ranks(steady(12))
    assert ranks.p < 0.001
    assert ranks.groups == (("row-0", "row-1"), ("row-1", "row-2"), ("row-2", "row-3"), ("row-3", "row-4"))
    assert ranks.verdict == (
        "Mean ranks differ over 12 settings (Friedman p < 0.001): row-0 has the best, 1.0, "
        "and 1 other row does not differ significantly from it."
    )


def test_chance_is_not_an_order() -> None:
    table = pd.DataFrame(np.random.default_rng(0).random((5, 8)), index=ROWS)
    ranks = mean_ranks(table)
    assert ranks.p > 0.05
    assert ranks.groups == (tuple(ranks.ranks.index),)
    assert "no significant difference between the 5 rows" in ranks.verdict


def test_rows_that_tie_everywhere_are_alike() -> None:
    assert mean_ranks(pd.DataFrame(0.5, index=ROWS, columns=range(6))).p == 1.0


def test_rows_without_all_settings_are_left_out() -> None:
    table = steady(6)
    table.loc["row-2", 3] = np.nan
    assert list(mean_ranks(table).ranks.index) == ["row-0", "row-1", "row-3", "row-4"]


def test_two_rows_are_too_few() -> None:
    assert mean_ranks(steady(6).iloc[:2]).verdict.endswith("here there are 2.")


def test_diagram_names_every_row_and_joins_those_alike() -> None:
    (picture,) = figures_ranks(mean_ranks(steady(12)), {"row-0": "Best"})
    assert isinstance(picture.figure, Figure)
    (ax,) = picture.figure.axes
    texts = [text.get_text() for text in ax.texts]
    assert "Best  1.00" in texts
    assert "5.00  row-4" in texts
    assert sum(line.get_linewidth() == 2.5 for line in ax.lines) == 4
    assert "CD = 1.76" in texts
