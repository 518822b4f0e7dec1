"""Which points to try. A proposer answers the results so far with the next points, until it has none.

The pattern search, one rule for all methods: try the suite's own point and the method's first values of lr; then
change one parameter of the best point so far, a rate by a factor of about 3 either way, any other to the next value of
its list. So a range widens for as long as the best lies at its edge. When all neighbours are tried, the factor becomes
its square root.
"""

import itertools
import math
from collections.abc import Callable, Sequence

from fedprompt.harness.tuning.search import Point, Result, Search, best_result, point_key
from fedprompt.harness.tuning.spaces import bounds

FACTOR = math.sqrt(10)
REFINEMENTS = 16  # then values would differ in their sixth digit
NEAR = 0.55  # of a step: rates this close to each other count as the same

# Called with the results so far, and with a number of points to stay near if they depend on earlier results. It is
# called when all points that it proposed have ended, and its first point is the search's default. It proposes a point
# until that is among the results; so a resumed command starts without results and reads them from the run folders.
Proposer = Callable[[Sequence[Result], int], list[Point]]


def pattern_proposer(search: Search) -> Proposer:
    """Depends on the results alone, so that several processes propose the same points."""

    def propose(results: Sequence[Result], _: int) -> list[Point]:
        points = untried(start_points(search), results) or _next_points(search, results)
        return points[: max(0, search.trials - len(results))]

    return propose


def untried(points: Sequence[Point], results: Sequence[Result]) -> list[Point]:
    ended = {point_key(result.point) for result in results}
    return [point for point in points if point_key(point) not in ended]


def start_points(search: Search) -> list[Point]:
    """The default, then the default with every other first value of lr, cut to the budget."""
    points: list[Point] = [search.default, *({**search.default, "lr": value} for value in search.grid.get("lr", ()))]
    return list({point_key(point): point for point in points}.values())[: search.trials]


def _next_points(search: Search, results: Sequence[Result]) -> list[Point]:
    """The untried neighbours of the best point along one axis."""
    best = _centre(results)
    for refinement in range(REFINEMENTS):
        axes = _untried_neighbours(search, results, best, FACTOR ** (0.5**refinement))
        if axes:
            # Beyond an edge first; else along the axis that has been explored least.
            edges = [name for name in edge_rates(search, results, best) if _values_tried(results, name) > 1]
            return axes[min([name for name in edges if name in axes] or axes, key=lambda n: _values_tried(results, n))]
    return [] if search.rates else untried(_grid_points(search), results)


def _centre(results: Sequence[Result]) -> Point:
    """The best point; if none finished, the one with the smallest lr, which is the least likely to diverge."""
    best = best_result(results)
    return best.point if best else min((result.point for result in results), key=lambda point: point.get("lr", 0))


def edge_rates(search: Search, results: Sequence[Result], point: Point) -> list[str]:
    """The rates of which ``point`` has the least or the greatest value that was tried."""
    rates = [search.effective(result.point) for result in results]
    point_rates = search.effective(point)
    return [
        name for name in search.rates if point_rates[name] in (min(r[name] for r in rates), max(r[name] for r in rates))
    ]


def open_axes(search: Search, results: Sequence[Result], point: Point) -> list[str]:
    """The parameters along which a neighbour of ``point``, at the first factor, was not tried."""
    return list(_untried_neighbours(search, results, point, FACTOR))


def _untried_neighbours(
    search: Search, results: Sequence[Result], point: Point, factor: float
) -> dict[str, list[Point]]:
    """By parameter; parameters without any are left out."""
    axes: dict[str, list[Point]] = {}
    for name in search.grid:
        for neighbour in _neighbours(search, point, name, factor):
            if not any(_near(search, neighbour, result.point, factor) for result in results):
                axes.setdefault(name, []).append(neighbour)
    return axes


def _neighbours(search: Search, point: Point, name: str, factor: float) -> list[Point]:
    value, values = search.effective(point)[name], search.values(name)
    if name not in search.rates:
        index = values.index(value)
        steps = [*values[max(0, index - 1) : index], *values[index + 1 : index + 2]]
        return [{**point, name: step} for step in steps]
    lower, higher = (float(f"{step:.6g}") for step in (value / factor, value * factor))
    if point[name] is None and "lr" in search.rates:
        # It moves with lr, until one of the two is raised alone: the one that the other holds back.
        moved = [{**point, "lr": higher, name: value}, {**point, name: higher}]
    else:
        moved = [{**point, name: lower}, {**point, name: higher}]
    return [search.tied(neighbour) for neighbour in moved if _allowed(search, neighbour)]


def _allowed(search: Search, point: Point) -> bool:
    limits = {name: bounds(search.key[0], name) for name in search.rates}
    return all(low <= search.effective(point)[name] <= high for name, (low, high) in limits.items())


def _near(search: Search, one: Point, other: Point, factor: float) -> bool:
    """Whether rates are close, as measured by a step of ``factor``, and all else is equal."""
    first, second = search.effective(one), search.effective(other)
    return all(
        abs(math.log(first[name] / second[name])) < NEAR * math.log(factor)
        if name in search.rates
        else first[name] == second[name]
        for name in search.grid
    )


def _values_tried(results: Sequence[Result], name: str) -> int:
    return len({result.point[name] for result in results})


def _grid_points(search: Search) -> list[Point]:
    """All there is, where no rate is searched."""
    lists = [search.values(name) for name in search.grid]
    return [dict(zip(search.grid, values, strict=True)) for values in itertools.product(*lists)]
