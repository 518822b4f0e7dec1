"""Which points to try: a proposer answers the results so far with the next points, until it has none."""

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any, Protocol

from fedprompt.harness.tuning.search import Point, Result, Search, point_key


class Proposer(Protocol):
    """Called again whenever all points that it proposed have ended, and after a restart from the beginning.

    The first point must be the search's default. A point is proposed until it is among the results, so nothing has to
    be kept between two calls of the command: points that are finished are read from their run folders.
    """

    def __call__(self, results: Sequence[Result], count: int) -> list[Point]:
        """The next points, none if the search is over; if they depend on earlier results, about ``count`` at a time."""


class GridProposer:
    """The grid at once, or as much of it as the budget allows."""

    def __init__(self, search: Search) -> None:
        self.points = grid_points(search)

    def __call__(self, results: Sequence[Result], count: int) -> list[Point]:  # noqa: ARG002
        return untried(self.points, results)


def untried(points: Sequence[Point], results: Sequence[Result]) -> list[Point]:
    ended = {point_key(result.point) for result in results}
    return [point for point in points if point_key(point) not in ended]


def grid_points(search: Search) -> tuple[Point, ...]:
    """The default, then the grid in its order, cut to the budget."""
    grid = [dict(zip(search.grid, values, strict=True)) for values in itertools.product(*search.grid.values())]
    rest = [point for point in grid if point != search.default]
    return (search.default, *_spread(rest, search.default, search.trials - 1))


def _spread(points: Sequence[Point], first: Point, count: int) -> list[Point]:
    """``count`` of ``points``, in their order, so that with ``first`` the values of a parameter come equally often.

    Among equals the farthest from those already selected is next, and then a hash decides: the selection depends on
    nothing else, and a larger budget only adds to it.
    """
    if len(points) <= count:
        return list(points)
    positions = {name: _positions({point[name] for point in (first, *points)}) for name in first}

    def distance(one: Point, other: Point) -> float:
        return sum(abs(position[one[name]] - position[other[name]]) for name, position in positions.items())

    def rank(point: Point) -> tuple[int, float, bytes]:
        uses = sum(point[name] == other[name] for other in selected for name in point)
        nearest = min(distance(point, other) for other in selected)
        return uses, -nearest, hashlib.sha256(point_key(point).encode()).digest()

    selected = [first]
    for _ in range(count):
        selected.append(min((point for point in points if point not in selected), key=rank))
    return [point for point in points if point in selected]


def _positions(values: set[Any]) -> dict[Any, float]:
    """From 0 for the least value to 1 for the greatest, in even steps."""
    ordered = sorted(values, key=lambda value: (value is not None, value))
    return {value: index / max(1, len(ordered) - 1) for index, value in enumerate(ordered)}
