"""Which points to try. A proposer answers the results so far with the next points, until it has none."""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from fedprompt.harness.tuning.search import Point, Result, Search, point_key

# Called with the results so far, and with a number of points to stay near if they depend on earlier results. It is
# called when all points that it proposed have ended, and its first point is the search's default. It proposes a point
# until that is among the results; so a resumed command starts without results and reads them from the run folders.
Proposer = Callable[[Sequence[Result], int], list[Point]]


def grid_proposer(search: Search) -> Proposer:
    """The whole grid at once, or as much of it as the budget allows."""
    points = grid_points(search)
    return lambda results, _: untried(points, results)


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
