import dataclasses

import pytest

from fedprompt.harness.report.document import Column, Entry, Grid


def wide(settings: int, metrics: int) -> Grid:
    """Columns of ten characters."""
    columns = [Column(f"m={m}", str(i), (Entry("0123456789"),)) for m in range(settings) for i in range(metrics)]
    return Grid("g", "G", ("Method",), tuple(columns))


@pytest.mark.parametrize(
    ("width", "sizes"), [(150, [12]), (149, [6, 6]), (77, [4, 4, 4]), (30, [2] * 6), (18, [1] * 12), (1, [1] * 12)]
)
def test_a_wide_table_is_cut_evenly_between_settings(width: int, sizes: list[int]) -> None:
    assert [len(part.columns) for part in wide(6, 2).parts(width)] == sizes


def test_columns_without_a_setting_are_cut_anywhere() -> None:
    columns = tuple(Column("", f"V={v}", (Entry("0123456789"),)) for v in range(1, 11))
    assert [len(part.columns) for part in Grid("g", "G", ("Method",), columns).parts(66)] == [5, 5]


def test_what_is_sent_stays_with_the_last_setting() -> None:
    grid = wide(6, 2)
    grid = dataclasses.replace(grid, columns=(*grid.columns, Column("Sent", "", (Entry("200 B"),))))
    assert [len(part.columns) for part in grid.parts(77)] == [4, 4, 5]
