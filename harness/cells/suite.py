"""A suite: settings, rows and seeds, and the cells that they expand to. `suite_file` reads one from TOML."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from fedprompt.datasets import parse_partition
from fedprompt.harness.cells.cell import Cell, make_cell
from fedprompt.harness.core.errors import unknown
from fedprompt.harness.model.weights import BackboneSpec

KINDS = ("heterogeneity", "unseen", "ablation", "vsweep")


@dataclass(frozen=True)
class Row:
    """One line of a table: a method, or a variant of one with its own parameters."""

    key: str  # the method's name, or the variant's key
    title: str
    method: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """One column of a table."""

    table: str  # the table's heading
    label: str  # the column's heading, such as `m=3`
    dataset: str
    partition: str
    rows: tuple[Row, ...]
    kind: str = "heterogeneity"
    published: str = ""  # the data set whose printed values are shown beside ours
    reference: str = ""  # key of the row that an ablation's differences are taken from
    protocol: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by method


@dataclass(frozen=True)
class Tune:
    """How learning rates are chosen: never on test data, never on a reporting seed, with one budget for all methods."""

    seeds: tuple[int, ...] = (100,)
    trials: int = 9  # of each study, at most
    protocol: Mapping[str, Any] = field(default_factory=dict)  # instead of the setting's; holds data out
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # instead of the methods' own, by parameter


class Planned(NamedTuple):
    """A cell and its place in the tables."""

    setting: Setting
    row: Row
    cell: Cell


@dataclass(frozen=True)
class Suite:
    """Expanded to cells once, at first use; a changed copy (`dataclasses.replace`) is expanded anew."""

    name: str
    title: str
    backbone: BackboneSpec
    seeds: tuple[int, ...]
    settings: tuple[Setting, ...]
    tune: Tune = Tune()
    # What `fedprompt tune` chose, by (method, data set, canonical partition).
    tuned: Mapping[tuple[str, str, str], Mapping[str, Any]] = field(default_factory=dict)

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row of any table, in the tables' order."""
        return tuple({row.key: row for setting in self.settings for row in setting.rows}.values())

    def planned(self) -> tuple[Planned, ...]:
        """Every entry of the tables, setting by setting, so that a table fills column by column; cells may repeat."""
        return tuple(self._expanded.values())

    def cells(self) -> list[Cell]:
        """What is to be run: each cell once, even if several tables show it."""
        return list({planned.cell.hash: planned.cell for planned in self.planned()}.values())

    def cell(self, setting: Setting, row: Row, seed: int) -> Cell:
        """The cell of one entry; ``setting``, ``row`` and ``seed`` are the suite's own."""
        return self._expanded[self.settings.index(setting), setting.rows.index(row), seed].cell

    def only(self, keys: Sequence[str]) -> "Suite":
        """The suite with only these rows, each named by method or variant; settings left without a row are dropped."""
        known = {name for row in self.rows for name in (row.key, row.method)}
        for key in keys:
            if key not in known:
                raise unknown(f"method of suite {self.name!r}", key, known)
        reduced = (
            replace(setting, rows=tuple(row for row in setting.rows if row.key in keys or row.method in keys))
            for setting in self.settings
        )
        return replace(self, settings=tuple(setting for setting in reduced if setting.rows))

    @cached_property
    def _expanded(self) -> dict[tuple[int, int, int], Planned]:
        """Entries by the indices of setting and row, and by seed."""
        return {
            (column, line, seed): Planned(setting, row, self._make_cell(setting, row, seed))
            for column, setting in enumerate(self.settings)
            for (line, row), seed in itertools.product(enumerate(setting.rows), self.seeds)
        }

    def _make_cell(self, setting: Setting, row: Row, seed: int) -> Cell:
        """What the suite says, then what tuning chose, then what the variant itself fixes."""
        tuned_params = self.tuned.get((row.method, setting.dataset, str(parse_partition(setting.partition))), {})
        params = {**setting.params.get(row.method, {}), **tuned_params, **row.params}
        return make_cell(row.method, setting.dataset, setting.partition, self.backbone, seed, params, setting.protocol)
