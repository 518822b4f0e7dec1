"""A suite: settings, rows and seeds, and the cells that they expand to. `suite_file` reads one from TOML."""

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.core.errors import unknown
from fedprompt.core.fields import is_rate
from fedprompt.datasets import parse_partition
from fedprompt.harness.federation.policy import PAPER, applicable, head_owner, is_finetuned
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.methods import registry

Key = tuple[str, str, str, str]  # method, data set, canonical partition, owner of the head
KINDS = ("heterogeneity", "unseen", "ablation", "vsweep", "novel", "target")


@dataclass(frozen=True)
class Row:
    """One line of a table: a method, a variant of one with its own parameters, or an alias with its own policy."""

    key: str  # the method's name or alias, or the variant's key
    title: str
    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    policy: str = ""  # the only one that it is shown under; none means all of the setting


@dataclass(frozen=True)
class Setting:
    """One column of a table."""

    table: str  # the table's heading
    label: str  # the column's heading, such as `m=3`
    dataset: str
    partition: str
    rows: tuple[Row, ...]
    kind: str = "heterogeneity"
    published: str = ""  # the data set whose printed values are shown next to ours
    reference: str = ""  # key of the row that an ablation's differences are taken from
    control: str = ""  # key of the row that all gains are taken over; none means no prompt under the same policy
    reference_method: str = ""  # that row's method, where the row itself was left out by a selection
    protocol: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by method
    policies: tuple[str, ...] = (PAPER,)  # of the head: each row is shown under every one that it can have

    @property
    def control_title(self) -> str:
        """What sentences call the control."""
        return next((row.title for row in self.rows if row.key == self.control), self.control) or "no prompt"

    @property
    def reference_row(self) -> Row | None:
        return next((row for row in self.rows if row.key == self.reference), None)

    def source_method(self, row: Row) -> str:
        """The method whose tuned values the row has: its own, in an ablation that of the reference row."""
        if self.kind != "ablation":
            return row.method
        return (self.reference_row.method if self.reference_row else self.reference_method) or row.method

    def reading(self, row: Row, policy: str) -> str:
        """The policy that ``policy`` stands for, where `paper` is what the row's method has in its paper.

        Published values of unseen clients were taken after each had fitted its head, so there `paper` fine-tunes.
        """
        if policy != PAPER:
            return policy
        published = row.policy or registry().get(row.method).paper_policy
        return "global_then_ft" if self.kind == "unseen" and published == "global" else published

    def shows(self, row: Row, policy: str) -> bool:
        """Whether the row has an entry under ``policy``; policies of the head are not for methods without one."""
        reading = self.reading(row, policy)
        return row.policy in ("", reading) and reading in applicable(registry().get(row.method).paper_policy)

    def readings(self, row: Row) -> dict[str, str]:
        """What each policy that the row has an entry under stands for."""
        return {policy: self.reading(row, policy) for policy in self.policies if self.shows(row, policy)}

    def same_training(self, row: Row) -> list[Row]:
        """The rows that differ from ``row`` in their policy at most, itself among them."""
        return [other for other in self.rows if (other.method, other.params) == (row.method, row.params)]


@dataclass(frozen=True)
class Tune:
    """How learning rates are chosen: never on test data, never on a reporting seed, with one budget for all methods."""

    seeds: tuple[int, ...] = (100,)
    trials: int = 9  # of each study, at most
    finals: tuple[int, ...] = ()  # further seeds, on which the best points of each study are compared once more
    tie: float = 0.0  # validation accuracies that lie this close to the best count as equal; the gentlest rates win
    protocol: Mapping[str, Any] = field(default_factory=dict)  # instead of the setting's; holds data out
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # instead of the methods' own, by parameter
    shared: bool = False  # settings of a data set share a study, which is made in the first of them
    start: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # instead of the suite's, by owner of the head


class Planned(NamedTuple):
    """A reading of a cell and its place in the tables."""

    setting: Setting
    row: Row
    policy: str  # as the setting lists it, maybe `paper`
    cell: Cell

    @property
    def reading(self) -> str:
        """The policy whose records count: one of `POLICIES`."""
        return self.setting.reading(self.row, self.policy)


@dataclass(frozen=True)
class Suite:
    """Expanded to cells once, at first use; a changed copy (`dataclasses.replace`) is expanded again."""

    name: str
    title: str
    backbone: BackboneSpec
    seeds: tuple[int, ...]
    settings: tuple[Setting, ...]
    tune: Tune = Tune()
    # What `fedprompt tune` chose.
    tuned: Mapping[Key, Mapping[str, Any]] = field(default_factory=dict)
    measures: tuple[str, ...] = ("accuracy",)  # what reports make tables of, by names of `measures.py`
    file: str = ""  # that it was read from, as the user wrote it; empty for the package's own

    @property
    def argument(self) -> str:
        """What names the suite on the command line."""
        return self.file or self.name

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row of any table, in the tables' order."""
        return tuple({row.key: row for setting in self.settings for row in setting.rows}.values())

    def planned(self, seeds: Sequence[int] | None = None) -> tuple[Planned, ...]:
        """Every entry of the tables, setting by setting, so that a table fills column by column; cells may repeat."""
        places = [(column, line) for column, setting in enumerate(self.settings) for line in range(len(setting.rows))]
        by_seed = [self._expand(seed) for seed in (self.seeds if seeds is None else seeds)]
        return tuple(entry for place in places for entries in by_seed for entry in entries[place])

    def keys(self) -> Iterator[Key]:
        """Of every entry, in the same order but once for all seeds; no cell is made for it."""
        for setting in self.settings:
            for row in setting.rows:
                for reading in setting.readings(row).values():
                    yield _key(setting, row.method, head_owner(reading))

    def cells(self) -> list[Cell]:
        """What is to be run: each cell once, even if several tables show it."""
        return list({planned.cell.hash: planned.cell for planned in self.planned()}.values())

    def variants(self) -> dict[str, str]:
        """Names of the cells that only ablations show, by hash: a variant's key, or `METHOD-ablation`."""
        main = {
            entry.cell.hash for entry in self.planned() if entry.setting.kind != "ablation" and not entry.row.params
        }
        return {
            entry.cell.hash: entry.row.key if entry.row.params else f"{entry.row.key}-ablation"
            for entry in self.planned()
            if entry.cell.hash not in main
        }

    def untuned(self) -> list[Planned]:
        """Entries that have the suite's own rates although others have tuned ones; zero-shot methods have no rates."""
        if not self.tuned:
            return []
        return [
            entry
            for entry in self.planned()
            if self._tuned_key(entry) not in self.tuned and any(map(is_rate, entry.cell.params))
        ]

    def command(self, verb: str, methods: Collection[str] = ()) -> str:
        """What to type for these methods, or for all of the suite's, with the files of those that are plugins."""
        names = sorted(set(methods))
        modules = {inspect.getmodule(registry().get(name)) for name in names or [row.method for row in self.rows]}
        files = sorted(str(module.__file__) for module in modules if module and "plugin_" in module.__name__)
        chosen = [f"--methods {','.join(names)}"] if names else []
        return " ".join(["fedprompt", verb, self.argument, *chosen, *(f"--plugin {file}" for file in files)])

    def cell(self, setting: Setting, row: Row, seed: int, policy: str | None = None) -> Cell:
        """The cell of one entry, all of them the suite's own; without a policy, that of the row's first."""
        entries = self._expand(seed)[self.settings.index(setting), setting.rows.index(row)]
        return next(entry.cell for entry in entries if policy in (None, entry.policy))

    def only(self, keys: Sequence[str]) -> "Suite":
        """The suite with only these rows, each named by method or variant; settings left without a row are dropped."""
        known = {name for row in self.rows for name in (row.key, row.method)}
        for key in keys:
            if key not in known:
                raise unknown(f"method of suite {self.name!r}", key, known)
        reduced = (
            replace(
                setting,
                rows=tuple(row for row in setting.rows if row.key in keys or row.method in keys),
                reference_method=setting.reference_row.method if setting.reference_row else "",
            )
            for setting in self.settings
        )
        return replace(self, settings=tuple(setting for setting in reduced if setting.rows))

    @cached_property
    def _expanded(self) -> dict[int, dict[tuple[int, int], tuple[Planned, ...]]]:
        return {}

    def _expand(self, seed: int) -> dict[tuple[int, int], tuple[Planned, ...]]:
        """Entries of all policies, by the indices of setting and row; made once for each seed.

        A cell that sweeps over draws also counts what the same one without a sweep does, and stands for it.
        """
        if seed not in self._expanded:
            entries = {
                (column, line): tuple(self._entries(setting, row, seed))
                for column, setting in enumerate(self.settings)
                for line, row in enumerate(setting.rows)
            }
            swept = (entry.cell for of_row in entries.values() for entry in of_row if entry.cell.protocol.sweep)
            instead = {replace(cell, protocol=replace(cell.protocol, sweep=False)).hash: cell for cell in swept}
            self._expanded[seed] = {
                place: tuple(entry._replace(cell=instead.get(entry.cell.hash, entry.cell)) for entry in of_row)
                for place, of_row in entries.items()
            }
        return self._expanded[seed]

    def _entries(self, setting: Setting, row: Row, seed: int) -> Iterator[Planned]:
        """One entry per policy; readings of one training share its cell, also if another row shows them."""
        readings = {reading for same in setting.same_training(row) for reading in setting.readings(same).values()}
        own = setting.readings(row)
        cells = {
            head: self._make_cell(setting, row, seed, readings, head)
            for head in sorted({head_owner(reading) for reading in own.values()})
        }
        for policy, reading in own.items():
            yield Planned(setting, row, policy, cells[head_owner(reading)])

    def _make_cell(self, setting: Setting, row: Row, seed: int, readings: Collection[str], head: str) -> Cell:
        """What the suite says, then what tuning chose, then what the variant itself fixes."""
        policy = next((reading for reading in readings if is_finetuned(reading) and head_owner(reading) == head), head)
        params = {**self._shared_params(setting, row, head), **row.params}
        where = (row.method, setting.dataset, setting.partition, self.backbone)
        return make_cell(*where, seed, params, setting.protocol, policy)

    def _shared_params(self, setting: Setting, row: Row, head: str) -> dict[str, Any]:
        """What the suite and tuning say of the row's method; in an ablation, of the reference row's.

        Rows of an ablation then differ in what they themselves fix, and in what their methods do not have in common.
        """
        source = setting.source_method(row)
        if source == row.method:
            return self._params_of(setting, row.method, head)
        accepted = {option.name for option in fields(registry().get(row.method).Params)}
        ablated = _defining(source, row.method)
        referred = self._params_of(setting, source, head)
        return {name: value for name, value in referred.items() if name in accepted - ablated}

    def _params_of(self, setting: Setting, method: str, head: str) -> dict[str, Any]:
        return {**setting.params.get(method, {}), **self.tuned.get(_key(setting, method, head), {})}

    @staticmethod
    def _tuned_key(entry: Planned) -> Key:
        return _key(entry.setting, entry.setting.source_method(entry.row), entry.cell.protocol.head)


def _key(setting: Setting, method: str, head: str) -> Key:
    return method, setting.dataset, str(parse_partition(setting.partition)), head


def _defining(reference: str, method: str) -> set[str]:
    """Parameters whose defaults tell ``method`` from ``reference``: what the ablation takes away."""
    ours, theirs = ({f.name: f.default for f in fields(registry().get(name).Params)} for name in (method, reference))
    return {name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name]}
