"""What is searched: one search per method, data set and partition of a suite.

    suite -> searches -> points (`propose`) -> cells, one per tuning seed (`tune`) -> tuned file -> bench

A point is run as cells like any others, on held-out training data and on seeds that no table reports; its value is the
mean of their validation averages. Their run folders are the queue and the results. Optuna records the trials (`study`).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from fedprompt.datasets import parse_partition
from fedprompt.harness.cells.cell import Cell, make_cell
from fedprompt.harness.cells.suite import Setting, Suite
from fedprompt.harness.core.errors import UserError, unknown
from fedprompt.harness.core.fields import build
from fedprompt.methods import registry

SAMPLERS = ("grid", "tpe")

Key = tuple[str, str, str]  # method, data set, canonical partition
Point = Mapping[str, Any]  # a value for each searched parameter


def point_key(point: Point) -> str:
    return json.dumps(point, sort_keys=True)


@dataclass(frozen=True)
class Result:
    """How a point ended: with a validation accuracy, or with the reason why it has none."""

    point: Point
    value: float | None = None
    reason: str = ""

    @property
    def state(self) -> str:
        return "failed" if self.value is None else "complete"


def best_result(results: Sequence[Result]) -> Result | None:
    """The best that finished. Ties go to the first, which is the default: no value is changed for nothing."""
    finished = [result for result in results if result.value is not None]
    return max(finished, key=lambda result: round(result.value or 0.0, 9), default=None)


@dataclass(frozen=True)
class Search:
    """Where to search, among which values, with how many trials."""

    suite: str
    base: tuple[Cell, ...]  # the untuned cell of each tuning seed
    grid: Mapping[str, tuple[Any, ...]]  # by parameter
    trials: int  # at most
    sampler: str

    @property
    def key(self) -> Key:
        cell = self.base[0]
        return cell.method, cell.dataset, cell.partition

    @property
    def default(self) -> dict[str, Any]:
        """The point that the suite uses untuned; it need not be on the grid."""
        return {name: self.base[0].params[name] for name in self.grid}

    @cached_property
    def digest(self) -> str:
        """Of everything that the results and their order depend on, so that a changed suite starts a new study."""
        parts = [self.suite, self.sampler, *(cell.to_json() for cell in self.base), json.dumps(self.grid)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        return "/".join((self.suite, *self.key, self.digest))

    @property
    def label(self) -> str:
        """Its name in tables and progress bars."""
        return " ".join(self.key)

    def cells(self, point: Point) -> tuple[Cell, ...]:
        """What is run for ``point``: one cell per tuning seed."""
        cells = tuple(replace(cell, params={**cell.params, **point}) for cell in self.base)
        assert all(cell.phase == "tune" for cell in cells), "a trial must not see test data"
        return cells


def setting_key(method: str, setting: Setting) -> Key:
    return method, setting.dataset, str(parse_partition(setting.partition))


def searches(suite: Suite, sampler: str = "grid", trials: int | None = None) -> list[Search]:
    """One search per method, data set and partition of the suite; none where a method has nothing to search.

    Variants use the values of their method. Where settings share a partition, the protocol of the first one counts.
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
    by_key: dict[Key, Search] = {}
    for setting in suite.settings:
        protocol = {**setting.protocol, **suite.tune.protocol}
        for method in dict.fromkeys(row.method for row in setting.rows):
            params, grid = setting.params.get(method, {}), _grid(method, suite)
            if not grid or setting_key(method, setting) in by_key:
                continue
            base = tuple(
                make_cell(method, setting.dataset, setting.partition, suite.backbone, seed, params, protocol)
                for seed in suite.tune.seeds
            )
            search = Search(suite.name, base, grid, budget, sampler)
            by_key[search.key] = search
    return list(by_key.values())


def _grid(method: str, suite: Suite) -> dict[str, tuple[Any, ...]]:
    """The method's grid, where the suite may replace the values of a parameter; an empty list removes it."""
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
