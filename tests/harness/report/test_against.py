"""Your run compared with a published one, on edited copies of the embedded suite's reference."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedprompt.core.errors import UserError
from fedprompt.harness.report.against import Verdict, accuracies, against, compare_runs, images_of, spread

REFERENCE = Path(__file__).parents[3] / "results" / "reference" / "embedded"
CELLS = pd.read_csv(REFERENCE / "cells.csv")
IN_TABLE = CELLS[CELLS["kind"] == "heterogeneity"]
A_CELL = IN_TABLE.index[0]  # one seed of no prompt
A_NUMBER = "No prompt, Feature shift (glyph-domains, m styles per client), m=1, local, "

Edit = Callable[[pd.DataFrame], object]


def compared(tmp_path: Path, edit: Edit, keep: "pd.Series[bool] | None" = None) -> Verdict:
    """What is said of the reference's cells (only ``keep``, on both sides) after ``edit``."""
    published = CELLS if keep is None else CELLS[keep]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
    shutil.copy(REFERENCE / "records.csv.gz", theirs)
    published.to_csv(theirs / "cells.csv", index=False)
    edited = published.copy()
    edit(edited)
    edited.to_csv(ours / "cells.csv", index=False)
    return against(ours, theirs)


def add(lines: object, points: float, metric: str = "average") -> Edit:
    def edit(cells: pd.DataFrame) -> None:
        cells.loc[lines, metric] += points / 100

    return edit


def unequal(line: str) -> int:
    """How many of the compared numbers the line does not call equal to the last digit."""
    counted = re.search(r"(\d+) numbers compared, (\d+) equal to the last digit", line)
    assert counted
    return int(counted[1]) - int(counted[2])


def nothing(cells: pd.DataFrame) -> None:
    pass


def two_seeds_of_two_rows() -> "pd.Series[bool]":
    return CELLS["seed"].isin((0, 1)) & CELLS["row"].isin(("head-tune", "fedvpt")) & (CELLS["kind"] == "heterogeneity")


def test_the_same_run_is_the_same(tmp_path: Path) -> None:
    verdict = compared(tmp_path, nothing)
    assert verdict.same
    [line] = verdict.lines
    assert line.startswith("same as ")
    assert line.endswith("largest difference 0.00 points.")
    assert unequal(line) == 0


@pytest.mark.parametrize("keep", [two_seeds_of_two_rows(), CELLS["seed"].isin((0, 1)), CELLS["seed"] == 0])
def test_one_cell_that_is_off_is_named(tmp_path: Path, keep: "pd.Series[bool]") -> None:
    verdict = compared(tmp_path, add(A_CELL, 20), keep)
    assert not verdict.same
    assert verdict.lines[0].startswith("1 of ")
    assert verdict.lines[1].startswith(f"differs: {A_NUMBER}Average: ")
    assert "one seed by 20.00;" in verdict.lines[1]


def test_five_points_of_one_method_are_named(tmp_path: Path) -> None:
    row = (IN_TABLE["row"] == "pfedbayespt") & (IN_TABLE["setting"] == "s=20") & (IN_TABLE["policy"] == "global")
    verdict = compared(tmp_path, add(IN_TABLE.index[row], 5))
    assert not verdict.same
    assert "s=20, global, Average" in verdict.lines[1]
    assert "(+5.00 points, one seed by 5.00; " in verdict.lines[1]


@pytest.mark.parametrize("seeds", [{0, 1, 2}, {0}])
def test_five_points_are_named_in_any_main_table(seeds: set[int]) -> None:
    published = accuracies(IN_TABLE).xs("average", level="metric", drop_level=False)
    theirs = published["value"]
    moved = theirs + 5 * theirs.index.get_level_values("seed").isin(seeds)
    assert compare_runs(moved, theirs, spread(published, images_of(REFERENCE)))["differs"].all()


def test_one_flipped_image_is_not_a_difference_but_not_equal(tmp_path: Path) -> None:
    clients, images, rounds = 18, 50, 3

    def flip(cells: pd.DataFrame) -> None:
        cells.loc[A_CELL, "average"] += 1 / clients / images / rounds
        cells.loc[A_CELL, "worst_local"] += 1 / images / rounds

    verdict = compared(tmp_path, flip)
    assert verdict.same
    [line] = verdict.lines
    assert "within the spread between seeds, but not to the last digit: " in line
    assert unequal(line) == 2


@pytest.mark.parametrize("metric", ["average", "worst_local"])
def test_with_one_seed_a_flipped_image_is_no_difference(tmp_path: Path, metric: str) -> None:
    points = 100 / 50 / (18 if metric == "average" else 1)
    assert compared(tmp_path, add(A_CELL, points, metric), CELLS["seed"] == 0).same


def test_opposite_differences_of_two_seeds_are_not_called_equal(tmp_path: Path) -> None:
    def shift(cells: pd.DataFrame) -> None:
        first, second = IN_TABLE.index[(IN_TABLE["row"] == "fedvpt") & (IN_TABLE["policy"] == "local")][:2]
        cells.loc[first, "average"] += 0.001
        cells.loc[second, "average"] -= 0.001

    assert unequal(compared(tmp_path, shift).lines[0]) == 1


def test_other_code_and_other_partitions_are_told(tmp_path: Path) -> None:
    def edit(cells: pd.DataFrame) -> None:
        cells.loc[IN_TABLE.index[IN_TABLE["row"] == "sgpt"], "code"] = "edited"
        cells.loc[A_CELL, "partition_hash"] = "other"

    code, partitions = compared(tmp_path, edit).lines[1:]
    assert code == "12 numbers were computed by other code than the published ones."
    assert partitions == "2 numbers were computed on other partitions."


def test_what_is_missing_is_counted(tmp_path: Path) -> None:
    def fail(cells: pd.DataFrame) -> None:
        cells.loc[IN_TABLE.index[IN_TABLE["row"] == "sgpt"], "status"] = "failed"

    assert compared(tmp_path, fail).lines[-1] == "12 numbers, or some of their seeds, are missing here."


def test_a_folder_that_is_no_reference(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="results/reference/embedded"):
        against(tmp_path, tmp_path)


NAMES = ["table", "setting", "policy", "metric", "title", "seed"]


def column(values: dict[str, list[float]], setting: str = "m=1") -> pd.DataFrame:
    """Published percentages of one column, by title; one value per seed."""
    lines = [
        ("T", setting, "local", "average", title, seed, value)
        for title, seeds in values.items()
        for seed, value in enumerate(seeds)
    ]
    return pd.DataFrame(lines, columns=[*NAMES, "value"]).assign(cell="c").set_index(NAMES)


IMAGES = pd.DataFrame({"all": [10_000], "client": [100]}, index=["c"])


def test_a_numbers_own_variance_is_averaged_with_its_columns() -> None:
    published = column({"a": [50, 52], "b": [50, 54], "c": [50, 50], "d": [50, 50]})  # variances 2, 8, 0, 0
    np.testing.assert_allclose(spread(published, IMAGES) ** 2, [(2 + 2.5) / 2, (8 + 2.5) / 2, 1.25, 1.25])


def test_a_column_of_few_rows_takes_the_metrics_variance() -> None:
    others = column({"a": [50, 52], "b": [50, 54], "c": [50, 50], "d": [50, 50]})
    lone = column({"a": [50, 50]}, setting="m=2")
    variance = spread(pd.concat([others, lone]), IMAGES).xs("m=2", level="setting") ** 2
    np.testing.assert_allclose(variance, [(0 + 10 / 5) / 2])


def test_with_one_seed_everywhere_the_images_stand_in() -> None:
    np.testing.assert_allclose(spread(column({"a": [50], "b": [10]}), IMAGES), [0.5, 0.3])


def test_the_spread_is_at_least_one_image() -> None:
    np.testing.assert_allclose(spread(column({"a": [50, 50, 50], "b": [9, 9, 9]}), IMAGES), [0.01, 0.01])


def test_a_mean_may_move_by_one_spread_and_a_seed_by_two() -> None:
    theirs = column({"a": [50, 50, 50]})["value"]
    spreads = pd.Series(1.0, index=theirs.index.droplevel("seed").unique())
    moves = {(0.9, 0.9, 0.9): False, (1.1, 1.1, 1.1): True, (1.9, 0.0, 0.0): False, (2.1, 0.0, 0.0): True}
    for move, differs in moves.items():
        assert compare_runs(theirs + np.array(move), theirs, spreads)["differs"].tolist() == [differs], move
