import dataclasses
from typing import Any

from matplotlib.colors import to_hex
from support.report_suites import a_setting, a_suite, make_numbers, results_frame

from fedprompt.harness.report.figures.gains import figures_gains
from fedprompt.harness.report.figures.style import COLOURS
from fedprompt.harness.report.inference import Difference
from fedprompt.harness.report.numbers import Number

SUITE = a_suite(settings=(a_setting(methods=("head-tune", "fedvpt", "fedvpt-d", "pfedpg"), policies=("global",)),))
NUMBERS = {number.row: number for number in make_numbers(SUITE, results_frame(SUITE)) if number.metric == "average"}


def gain(row: str, points: float, p: float, half: float = 1.0, **changed: Any) -> Number:
    difference = Difference(row, "head-tune", points, points - half, points + half, p, p, 2, 20)
    return dataclasses.replace(NUMBERS[row], mean=60 + points, **{"gain": difference, **changed})


def marks(numbers: list[Number]) -> dict[float, str]:
    """Colour of every mark by its gain."""
    (drawn,) = figures_gains(SUITE, numbers)
    (ax,) = drawn.figure.axes
    return {float(line.get_xdata()[0]): to_hex(line.get_color()) for line in ax.lines if len(line.get_xdata()) == 1}


def test_only_gains_that_differ_from_zero_are_filled() -> None:
    drawn = marks([gain("fedvpt", 3.0, 0.01), gain("fedvpt-d", 1.0, 0.4)])
    assert drawn == {3.0: COLOURS[0].lower(), 1.0: "#ffffff"}


def test_control_worst_client_and_ablation_have_no_mark() -> None:
    others = [
        gain("head-tune", 0.0, 1.0, control=True),
        gain("fedvpt-d", 7.0, 0.01, metric="worst_local"),
        gain("fedvpt-d", 8.0, 0.01, kind="ablation"),
    ]
    assert set(marks([gain("fedvpt", 3.0, 0.01), *others])) == {3.0}


def test_no_gains_no_figure() -> None:
    assert not list(figures_gains(SUITE, [gain("fedvpt", 1.0, 0.5, gain=None)]))


def test_an_interval_of_a_collapsed_row_does_not_set_the_scale() -> None:
    collapsed = gain("pfedpg", -5.0, 1.0, half=85.0)
    (drawn,) = figures_gains(SUITE, [gain("fedvpt", 3.0, 0.01), gain("fedvpt-d", 1.0, 0.4), collapsed])
    (ax,) = drawn.figure.axes
    left, right = ax.get_xlim()
    assert -7 < left < -5
    assert 4 < right < 6
    assert {line.get_marker() for line in ax.lines} >= {"<", ">"}
    assert drawn.caption.endswith("Arrow: the interval goes on beyond the panel.")


def test_a_collapsed_row_does_not_set_the_scale_and_is_named_at_the_edge() -> None:
    (drawn,) = figures_gains(SUITE, [gain("fedvpt", 3.0, 0.01), gain("fedvpt-d", -50.0, 0.01)])
    (ax,) = drawn.figure.axes
    assert -1 < ax.get_xlim()[0] < 0
    assert [text.get_text() for text in ax.texts] == ["−50"]
    assert [line.get_marker() for line in ax.lines].count("<") == 1
    assert ">" not in {line.get_marker() for line in ax.lines}
    assert "of a row with less than half of the control's accuracy" in drawn.caption
