"""The remaining time of a session."""

import pytest
from support.run_folders import a_cell

from fedprompt.harness.cli._remaining import Remaining
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.run import RoundProgress


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def pass_rounds(remaining: Remaining, clock: Clock, cell: Cell, seconds: float, first: int = 1) -> None:
    """Every round of the cell from ``first`` on takes ``seconds``."""
    for number in range(first, 4):
        clock.time += seconds
        remaining.round(RoundProgress(cell.hash, number, 3, {}))
    remaining.end(cell.hash)


def session(*cells: Cell, **flops: float) -> tuple[Remaining, Clock]:
    clock = Clock()
    by_hash = {cell.hash: cell for cell in cells}
    return Remaining(by_hash, lambda: {cell.hash: flops[cell.method] for cell in cells}, clock), clock


def test_nothing_is_said_before_the_first_round() -> None:
    remaining, _ = session(a_cell("fedvpt"), fedvpt=10)
    assert remaining.seconds is None


def test_flops_are_counted_once_and_not_before_a_round() -> None:
    cell, counted = a_cell(), []
    remaining = Remaining({cell.hash: cell}, lambda: counted.append(1) or {})
    assert remaining.seconds is None
    assert not counted
    for number in (1, 2):
        remaining.round(RoundProgress(cell.hash, number, 3, {}))
        assert remaining.seconds is not None
        assert counted == [1]


def test_cells_are_weighed_by_their_flops() -> None:
    small, large = a_cell("fedvpt"), a_cell("sgpt")
    remaining, clock = session(small, large, fedvpt=10, sgpt=50)
    pass_rounds(remaining, clock, small, 1.0)
    assert remaining.seconds == pytest.approx(15.0)


def test_a_methods_own_pace_counts_once_it_is_known() -> None:
    fast, slow, slow_again = a_cell("fedvpt"), a_cell("sgpt"), a_cell("sgpt", seed=1)
    remaining, clock = session(fast, slow, slow_again, fedvpt=10, sgpt=10)
    pass_rounds(remaining, clock, fast, 1.0)
    pass_rounds(remaining, clock, slow, 9.0)
    assert remaining.seconds == pytest.approx(27.0)


def test_rounds_of_an_earlier_session_cost_no_time_now() -> None:
    resumed, other = a_cell("fedvpt"), a_cell("fedvpt", seed=1)
    remaining, clock = session(resumed, other, fedvpt=10)
    pass_rounds(remaining, clock, resumed, 2.0, first=3)  # one round of three, in two seconds
    assert remaining.seconds == pytest.approx(6.0)


def test_failed_cells_are_not_waited_for() -> None:
    done, failed = a_cell("fedvpt"), a_cell("fedvpt", seed=1)
    remaining, clock = session(done, failed, fedvpt=10)
    pass_rounds(remaining, clock, done, 1.0)
    remaining.end(failed.hash)
    assert remaining.seconds == 0.0


def test_cheap_cells_that_come_first_say_nothing_of_the_rest() -> None:
    cheap, dear = a_cell("head-tune"), a_cell("sgpt")
    remaining, clock = session(cheap, dear, **{"head-tune": 1, "sgpt": 1000})
    pass_rounds(remaining, clock, cheap, 5)
    assert remaining.seconds is None
