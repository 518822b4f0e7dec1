"""Tuning: one search a (method, data set, partition), on held-out training data and on seeds that no table reports.

    suite -> searches (here) -> trials in Optuna (`_tuning_queue`) -> cells (`_tuning_run`) -> tuned file -> bench

A trial is one cell a tuning seed, run like any other; its value is the mean of their validation averages. The default
point, which the suite uses untuned, is always tried: what is chosen is never worse than it on validation data.
"""

import hashlib
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedprompt.harness.cells.cell import Cell, make_cell
from fedprompt.harness.cells.suite import Setting, Suite
from fedprompt.harness.core.errors import UserError, unknown
from fedprompt.harness.core.fields import build
from fedprompt.harness.tuning.file import read_tuned
from fedprompt.harness.tuning.trials import tuning_frame
from fedprompt.methods import registry

__all__ = ["SAMPLERS", "Search", "load_tuned", "searches", "tuned_path", "tuning_frame", "with_tuned"]

SAMPLERS = ("grid", "tpe")

Point = Mapping[str, Any]  # a value for each searched parameter


def point_key(point: Point) -> str:
    return json.dumps(point, sort_keys=True)


@dataclass(frozen=True)
class Search:
    """One study: where it searches, among which values, with how many trials."""

    suite: str
    setting: Setting  # the first one of the suite with this data set and partition
    base: tuple[Cell, ...]  # the untuned cell of each tuning seed
    grid: Mapping[str, tuple[Any, ...]]  # by parameter
    trials: int  # at most
    sampler: str

    @property
    def key(self) -> tuple[str, str, str]:
        cell = self.base[0]
        return cell.method, cell.dataset, cell.partition

    @property
    def default(self) -> dict[str, Any]:
        """The point that the suite uses untuned; it need not be on the grid."""
        return {name: self.base[0].params[name] for name in self.grid}

    @cached_property
    def digest(self) -> str:
        """Of everything that the trials' values and their order depend on, so that a changed suite begins anew."""
        parts = [self.suite, self.sampler, *(cell.to_json() for cell in self.base), json.dumps(self.grid)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        return "/".join((self.suite, *self.key, self.digest))

    @property
    def label(self) -> str:
        """How tables and bars call it."""
        return " ".join(self.key)

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """What is tried, the default first; of TPE, which finds its own, the default alone."""
        if self.sampler == "tpe":
            return (self.default,)
        whole = [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]
        rest = [point for point in whole if point != self.default]
        return (self.default, *_spread(rest, self.default, self.trials - 1))

    def cells(self, point: Point) -> tuple[Cell, ...]:
        """The trial of ``point``."""
        cells = tuple(replace(cell, params={**cell.params, **point}) for cell in self.base)
        assert all(cell.phase == "tune" for cell in cells), "a trial must not see test data"
        return cells


def _spread(points: Sequence[Point], first: Point, count: int) -> list[Point]:
    """``count`` of ``points``, in their order, so that with ``first`` the values of a parameter come equally often.

    Among equals the farthest from those chosen is next, and then a hash decides: the choice depends on nothing else,
    and a larger budget only adds to it.
    """
    if len(points) <= count:
        return list(points)
    places = {name: _places({point[name] for point in (first, *points)}) for name in first}

    def distance(one: Point, other: Point) -> float:
        return sum(abs(place[one[name]] - place[other[name]]) for name, place in places.items())

    def rank(point: Point) -> tuple[int, float, bytes]:
        uses = sum(point[name] == other[name] for other in chosen for name in point)
        nearest = min(distance(point, other) for other in chosen)
        return uses, -nearest, hashlib.sha256(point_key(point).encode()).digest()

    chosen = [first]
    for _ in range(count):
        chosen.append(min((point for point in points if point not in chosen), key=rank))
    return [point for point in points if point in chosen]


def _places(values: set[Any]) -> dict[Any, float]:
    """From 0 for the least to 1 for the greatest, in even steps."""
    ordered = sorted(values, key=lambda value: (value is not None, value))
    return {value: place / max(1, len(ordered) - 1) for place, value in enumerate(ordered)}


def searches(suite: Suite, sampler: str = "grid", trials: int | None = None) -> list[Search]:
    """One search for each method, data set and partition of the suite; none where a method has nothing to search.

    Variants use what was chosen for their method. Of settings with one partition the first one's protocol counts.
    """
    budget = suite.tune.trials if trials is None else trials
    if budget < 1:
        raise UserError(
            f"{budget} trials are too few; a study needs at least 1 (--trials, or tune.trials of the suite)."
        )
    known = {field.name for name in registry().names() for field in fields(registry().get(name).Params)}
    for name in suite.tune.grid:
        if name not in known:
            raise unknown(f"parameter in tune.grid of suite {suite.name!r}", name, known)
    found: dict[tuple[str, str, str], Search] = {}
    for setting in suite.settings:
        protocol = {**setting.protocol, **suite.tune.protocol}
        for method in dict.fromkeys(row.method for row in setting.rows):
            params, grid = setting.params.get(method, {}), _grid(method, suite)
            base = tuple(
                make_cell(method, setting.dataset, setting.partition, suite.backbone, seed, params, protocol)
                for seed in suite.tune.seeds
            )
            search = Search(suite.name, setting, base, grid, budget, sampler)
            if grid:
                found.setdefault(search.key, search)
    return list(found.values())


def _grid(method: str, suite: Suite) -> dict[str, tuple[Any, ...]]:
    """The method's own, replaced by the suite's parameter by parameter; an empty list takes one out."""
    cls = registry().get(method)
    grid = {}
    for field in fields(cls.Params):
        values = suite.tune.grid.get(field.name, field.metadata.get("grid", ()))
        if not isinstance(values, list | tuple):
            raise UserError(f"tune.grid.{field.name} = {values!r} of suite {suite.name!r} is not a list of values.")
        where = f"tune.grid of suite {suite.name!r} for {method}"
        checked = [getattr(build(cls.Params, {field.name: value}, where), field.name) for value in values]
        if checked:
            grid[field.name] = tuple(dict.fromkeys(checked))
    return grid


def tuned_path(suite: Suite, out: Path) -> Path:
    return out / "tuned" / f"{suite.name}.toml"


def load_tuned(path: Path) -> Mapping[tuple[str, str, str], Mapping[str, Any]]:
    """What was chosen, by (method, data set, canonical partition): `Suite.tuned`."""
    return {entry.key: entry.params for entry in read_tuned(path)}


def with_tuned(suite: Suite, out: Path) -> Suite:
    """The suite with what `fedprompt tune` chose for it, if it did."""
    path = tuned_path(suite, out)
    if not path.is_file():
        return suite
    shared = set(suite.seeds) & set(suite.tune.seeds)
    if shared:
        raise UserError(f"seed {min(shared)} is one that {path} was tuned on; choose others, or pass --untuned.")
    entries = {entry.key: entry for entry in read_tuned(path)}
    used = [entries[key] for key in dict.fromkeys(_keys(suite)) if key in entries]
    for entry in used:
        build(registry().get(entry.method).Params, entry.params, f"{path}: parameters of {entry.method}")
    current = {search.name for sampler in SAMPLERS for search in searches(suite, sampler)}
    old = [entry for entry in used if entry.study not in current]
    if old:
        print(
            f"warning: {len(old)} of {len(used)} choices in {path} were made for another state of the suite or the "
            f"code (such as {old[0].study}); run `fedprompt tune {suite.name}` again, or pass --untuned",
            file=sys.stderr,
        )
    return replace(suite, tuned={entry.key: entry.params for entry in used})


def _keys(suite: Suite) -> list[tuple[str, str, str]]:
    cells = (planned.cell for planned in replace(suite, seeds=suite.seeds[:1]).planned())
    return [(cell.method, cell.dataset, cell.partition) for cell in cells]
