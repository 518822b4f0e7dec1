"""What is searched: one search per method, data set, partition and owner of the head in a suite.

    suite -> searches -> points (`propose`) -> cells, one per tuning seed (`tune`) -> tuned file -> bench

A point is run as cells like any others, on held-out training data and on seeds that no table reports; its value is the
mean of their validation averages. Their run folders are the queue and the results. Optuna records the trials (`study`).

The best of many noisy values is partly luck, and a rate at the edge of stability may have had all of it. A suite can
name seeds for finals: the best points are run on these too, and the choice among them is by the mean over all seeds.
Where settings share a study, its finals take turns over them, so that no rate is chosen which serves the first alone.
A suite can also say which accuracies are too close to tell; among such points the one with the gentlest rates wins.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import cycle
from pathlib import Path
from statistics import mean
from typing import Any

from fedprompt.core.errors import UserError, unknown
from fedprompt.core.fields import is_rate
from fedprompt.harness.federation.policy import metric_suffix
from fedprompt.harness.federation.rounds import failure_state
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.suite import Planned, Suite
from fedprompt.harness.tuning.spaces import search_space
from fedprompt.methods import registry

SAMPLERS = ("pattern", "tpe")
FINALISTS = 3  # points of a study that meet once more, on further seeds
TIED = 0.01  # a rate this close to lr, in parts of it, is written as none: it follows lr

Key = tuple[str, str, str, str]  # method, data set, canonical partition, owner of the head
KEY_NAMES = ("method", "dataset", "partition", "head")
Point = Mapping[str, Any]  # a value for each searched parameter


def point_key(point: Point) -> str:
    return json.dumps(point, sort_keys=True)


@dataclass(frozen=True)
class Result:
    """How a point ended: with a validation accuracy, or with the reason why it has none."""

    point: Point
    value: float | None = None
    reason: str = ""
    by_seed: tuple[float, ...] = ()  # of which the value is the mean
    finals: tuple[float, ...] = ()  # of a finalist: on the seeds of the finals

    @property
    def state(self) -> str:
        """`complete`, `diverged` or `failed`."""
        return failure_state(self.reason) if self.value is None else "complete"

    @property
    def all_seeds(self) -> tuple[float, ...]:
        """The accuracy on every seed that the point was run on."""
        return self.by_seed + self.finals

    @property
    def score(self) -> float:
        """What points are compared by: the mean over all seeds, those of the finals included."""
        return mean(self.all_seeds) if self.finals else self.value or 0.0


def best_result(results: Sequence[Result]) -> Result | None:
    """The best that finished; of the finalists, if there are any, because the others' luck was not put to the test.

    Ties go to the first, which is the default: no value is changed for nothing.
    """
    finished = [result for result in results if result.value is not None]
    candidates = [result for result in finished if result.finals] or finished
    return max(candidates, key=lambda result: round(result.score, 9), default=None)


def finalists(results: Sequence[Result]) -> list[Result]:
    """The best points of a study, the best first."""
    finished = [result for result in results if result.value is not None]
    return sorted(finished, key=lambda result: -round(result.score, 9))[:FINALISTS]


def chosen_result(search: "Search", results: Sequence[Result]) -> Result | None:
    """The best, or of those that tie with it the one with the least rates: the farthest from where training breaks."""
    best = best_result(results)
    if best is None or not search.tie:
        return best
    rivals = [result for result in results if result.value is not None and bool(result.finals) == bool(best.finals)]
    tied = [result for result in rivals if result.score >= best.score - search.tie]
    return min(tied, key=lambda result: (round(search.log_rates(result.point), 9), -result.score))


@dataclass(frozen=True)
class Search:
    """Where to search, from which values on, with how many trials."""

    suite: str
    base: tuple[Cell, ...]  # the untuned cell of each tuning seed
    grid: Mapping[str, tuple[Any, ...]]  # by parameter: first values of lr, all values of what is no rate
    trials: int
    sampler: str
    readings: tuple[str, ...] = ("average",)  # keys of a cell's summary; its value is their mean
    finals: tuple[Cell, ...] = ()  # as `base`, of the seeds of the finals
    tie: float = 0.0  # accuracies this close to the best count as equal

    @property
    def key(self) -> Key:
        return cell_key(self.base[0])

    @property
    def finalists(self) -> int:
        """How many points meet in the finals, at most."""
        return min(FINALISTS, self.trials) if self.finals else 0

    @property
    def cell_count(self) -> int:
        """How many cells are run, at most."""
        return self.trials * len(self.base) + self.finalists * len(self.finals)

    @property
    def default(self) -> dict[str, Any]:
        """The point that the search begins with; it need not be on the grid."""
        return {name: self.base[0].params[name] for name in self.grid}

    @cached_property
    def rates(self) -> tuple[str, ...]:
        """The parameters that are searched on a logarithmic axis, without limits but the method's own."""
        start = self.effective(self.default)
        return tuple(
            name
            for name, values in self.grid.items()
            if is_rate(name) and all(value is not None and value > 0 for value in (start[name], *values))
        )

    def values(self, name: str) -> list[Any]:
        """All values of a parameter that is no rate, in order: the listed ones and the default."""
        values = list(dict.fromkeys((*self.grid[name], self.default[name])))
        return sorted(values) if all(isinstance(value, int | float) for value in values) else values

    def effective(self, point: Point) -> dict[str, Any]:
        """``point`` with the value of lr for rates that follow it (none)."""
        lr = point.get("lr", self.base[0].params.get("lr"))
        return {name: lr if value is None and is_rate(name) else value for name, value in point.items()}

    def log_rates(self, point: Point) -> float:
        """How high the rates of ``point`` are altogether: the sum of their logarithms."""
        rates = self.effective(point)
        return sum(math.log(rates[name]) for name in self.rates)

    def tied(self, point: Point) -> dict[str, Any]:
        """The opposite: rates that follow lr by default and equal it are none, so that equal points look equal."""
        lr = point.get("lr", self.base[0].params.get("lr"))
        follow = {name for name, value in self.default.items() if value is None and is_rate(name)}
        return {
            name: None if name in follow and value and lr and math.isclose(value, lr, rel_tol=TIED) else value
            for name, value in point.items()
        }

    @cached_property
    def setup(self) -> str:
        """Digest of what is searched where. Equal in suites that share the setting, and in all versions of the code."""
        bases = (*self.base, *self.finals)
        cells = [replace(cell, code="", dataset=portable(cell.dataset)).to_json() for cell in bases]
        tie = [f"tie={self.tie}"] if self.tie else []
        return _digest(*cells, json.dumps(self.grid), *self.readings, *tie)

    @cached_property
    def digest(self) -> str:
        """Of everything that the results and their order depend on, so that a changed suite starts a new study."""
        return _digest(self.suite, self.sampler, self.setup, self.base[0].code)

    @property
    def name(self) -> str:
        return "/".join((self.suite, *self.key, self.digest))

    @property
    def label(self) -> str:
        """Its name in tables and progress bars."""
        return " ".join(self.key)

    def cells(self, point: Point, final: bool = False) -> tuple[Cell, ...]:
        """What is run for ``point``: one cell per tuning seed, or per seed of the finals."""
        bases = self.finals if final else self.base
        cells = tuple(replace(cell, params={**cell.params, **point}) for cell in bases)
        assert all(cell.phase == "tune" for cell in cells), "a trial must not see test data"
        return cells


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def portable(dataset: str) -> str:
    """A data set as tuned files name it: a user's folder by its own name, wherever it is kept."""
    path, layout, levels = dataset.removeprefix("folder:").partition("?layout=")
    return f"folder:{Path(path).name}{layout}{levels}" if dataset.startswith("folder:") else dataset


def cell_key(cell: Cell) -> Key:
    return cell.method, cell.dataset, cell.partition, cell.protocol.head


def study_keys(suite: Suite) -> dict[Key, Key]:
    """For the key of every cell, that of the study whose values it has: its own unless the suite shares studies."""
    keys = dict.fromkeys(cell_key(cell) for cell in suite.cells())
    if not suite.tune.shared:
        return {key: key for key in keys}
    first: dict[tuple[str, str, str], Key] = {}
    return {key: first.setdefault((key[0], key[1], key[3]), key) for key in keys}


def searches(suite: Suite, sampler: str = "pattern", trials: int | None = None) -> list[Search]:
    """One search per training of a method in the suite; none where a method has nothing to search.

    Variants use the values of their method, the rows of an ablation those of its reference. Where settings share a
    partition or, by the suite's wish, all their studies, the first one counts.
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
    datasets = sorted({setting.dataset for setting in suite.settings})
    for name, count in Counter(map(portable, datasets)).items():
        if count > 1:
            raise UserError(f"suite {suite.name!r} has two folders {name!r}, and tuned values go by name; rename one.")
    candidates = (_search(suite, planned, budget, sampler) for planned in _trainings(suite).values())
    return [search for search in candidates if search.grid]


def _trainings(suite: Suite) -> dict[Key, list[Planned]]:
    """The entries that show each training, or one that shares its study."""
    entries: dict[Key, list[Planned]] = {}
    studies = study_keys(suite)
    for planned in suite.planned():
        setting = planned.setting
        compared = setting.kind == "ablation" and setting.reference not in ("", planned.row.key)
        if planned.cell.seed == suite.seeds[0] and not compared:
            entries.setdefault(studies[cell_key(planned.cell)], []).append(planned)
    return entries


def _search(suite: Suite, entries: Sequence[Planned], trials: int, sampler: str) -> Search:
    first = entries[0]
    columns: dict[str, Planned] = {}  # of the first one's kind: those of an ablation or a sweep are among them
    for entry in entries:
        if entry.setting.kind == first.setting.kind:
            columns.setdefault(entry.cell.partition, entry)
    searched, *others = columns.values()
    turns = cycle([*others, searched])
    base = tuple(_base(suite, first, seed) for seed in suite.tune.seeds)
    finals = tuple(_base(suite, entry, seed) for entry, seed in zip(turns, suite.tune.finals, strict=False))
    grid = search_space(first.cell.method, suite.tune.grid, f"tune.grid of suite {suite.name!r}", suite.backbone)
    readings = summary_keys(base[0], [entry for entry in entries if entry.setting is first.setting])
    return Search(suite.name, base, grid, trials, sampler, readings, finals, suite.tune.tie)


def _base(suite: Suite, entry: Planned, seed: int) -> Cell:
    """The cell of ``entry`` on held-out data, with the values that its search begins with."""
    setting, method = entry.setting, entry.cell.method
    head = {"head": entry.cell.protocol.head, "finetune_epochs": entry.cell.protocol.finetune_epochs}
    protocol = {**setting.protocol, **head, **suite.tune.protocol}
    accepted = {field.name for field in fields(registry().get(method).Params)}
    start = suite.tune.start.get(entry.cell.protocol.head, {})
    params = {**setting.params.get(method, {}), **{key: start[key] for key in start if key in accepted}}
    return make_cell(method, setting.dataset, setting.partition, suite.backbone, seed, params, protocol)


def summary_keys(cell: Cell, entries: Sequence[Planned]) -> tuple[str, ...]:
    """The keys of the summary of ``cell`` that hold its validation average under the policies of ``entries``."""
    if not cell.protocol.finetune_epochs:
        return ("average",)
    return tuple(sorted({f"average{metric_suffix(entry.reading)}" for entry in entries}))
