import pandas as pd
from support.report_suites import trials

from fedprompt.harness.report.figures.tuning import figures_tuning


def test_tuning_shows_the_best_at_each_value_and_rings_the_chosen() -> None:
    axes = {each.name: each.figure.axes for each in figures_tuning(trials())}
    assert list(axes) == ["tuning-lr", "tuning-tau"]
    [ax] = axes["tuning-lr"]
    line, ring = ax.lines
    assert line.get_xydata().tolist() == [[0.1, 70.0], [0.3, 65.0]]
    assert ring.get_xydata().tolist() == [[0.1, 70.0]]
    assert ax.get_xscale() == "log"
    [ax] = axes["tuning-tau"]
    assert ax.lines[0].get_xydata().tolist() == [[0, 65.0], [1, 70.0]]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.5", "1"]


def test_trainings_with_a_local_and_a_global_head_have_panels_of_their_own() -> None:
    frame = pd.concat([trials(tau=1.0), trials(tau=1.0, head="global")])
    [drawn] = figures_tuning(frame)
    titles = [ax.get_title() for ax in drawn.figure.axes]
    assert titles == ["glyph-100, s=5, local head", "glyph-100, s=5, global head"]


def test_a_parameter_with_one_value_is_not_drawn() -> None:
    assert [each.name for each in figures_tuning(trials(tau=1.0))] == ["tuning-lr"]


def test_no_tuning_no_figure() -> None:
    assert list(figures_tuning(trials()[:0])) == []
