"""A suite: a TOML file that names methods, settings and seeds, and expands to cells.

title = "..."            methods = "all" or a list       seeds = [0, 1]
backbone = "micro-vit"   weights = "..." (optional)      image_size = 32 (optional)
[protocol]               fields of the protocol, for every cell
[params.METHOD]          parameters of one method, for every cell; [params.all] for each method that has them
[variants.KEY]           a further row: method, title, params; named in `methods` by its key
[tune]                   seeds, trials, [tune.protocol], [tune.grid]: how `fedprompt tune` goes about it
[[settings]]             table = "Feature shift", dataset, partition = "domains:m={m}", m = [1, 3, 6]
                         (one list a placeholder), kind (heterogeneity, unseen, ablation, vsweep), methods,
                         published = "DomainNet" (whose printed values stand beside), reference (of an ablation),
                         [settings.protocol] and [settings.params.METHOD] for these cells
include = ["...", ...]   instead of settings: those of other suites, with the same backbone and seeds
"""

import itertools
import string
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from fedprompt.datasets import parse_partition
from fedprompt.harness.cells.cell import Cell, make_cell
from fedprompt.harness.core.errors import UserError, unknown
from fedprompt.harness.model.weights import BackboneSpec, backbone_spec
from fedprompt.methods import registry

FOLDER = Path(__file__).parent / "suites"
KEYS = {"title", "methods", "seeds", "backbone", "weights", "image_size", "protocol", "params", "settings"}
KEYS |= {"variants", "tune", "include"}
SETTING_KEYS = {"table", "dataset", "partition", "protocol", "params", "kind", "methods", "published", "reference"}
VARIANT_KEYS = {"method", "title", "params"}
KINDS = ("heterogeneity", "unseen", "ablation", "vsweep")


@dataclass(frozen=True)
class Row:
    """One line of a table: a method, or a variant of one with parameters of its own."""

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
    published: str = ""  # the data set whose printed values stand beside these
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

    def planned(self) -> Iterator[Planned]:
        """Every entry of the tables, setting by setting, so that a table fills column by column; cells may repeat."""
        for setting in self.settings:
            for row, seed in itertools.product(setting.rows, self.seeds):
                yield Planned(setting, row, self.cell(setting, row, seed))

    def cell(self, setting: Setting, row: Row, seed: int) -> Cell:
        """What the suite says, then what tuning chose, then what the variant itself fixes."""
        chosen = self.tuned.get((row.method, setting.dataset, str(parse_partition(setting.partition))), {})
        params = {**setting.params.get(row.method, {}), **chosen, **row.params}
        return make_cell(row.method, setting.dataset, setting.partition, self.backbone, seed, params, setting.protocol)

    def cells(self) -> list[Cell]:
        """What is to be run: each cell once, wherever it is shown."""
        return list({planned.cell.hash: planned.cell for planned in self.planned()}.values())

    def only(self, keys: Sequence[str]) -> "Suite":
        """The suite with these rows alone, each named by method or variant; settings left without a row go."""
        known = {name for row in self.rows for name in (row.key, row.method)}
        for key in keys:
            if key not in known:
                raise unknown(f"method of suite {self.name!r}", key, known)
        cut = (
            replace(s, rows=tuple(row for row in s.rows if row.key in keys or row.method in keys))
            for s in self.settings
        )
        return replace(self, settings=tuple(setting for setting in cut if setting.rows))


def suite_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load_suite(name: str, weights: str | None = None) -> Suite:
    """A suite of the package by name, or a file of the user's by path; ``weights`` replaces the file's own."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        raise unknown("suite", name, suite_names(), "A suite of your own: a path that ends in .toml.")
    try:
        raw = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"suite {path} is not valid TOML: {error}.") from error
    return parse_suite(path.stem, raw, weights)


def parse_suite(name: str, raw: Mapping[str, Any], weights: str | None = None) -> Suite:
    where = f"suite {name!r}"
    _known(raw, KEYS, where)
    if "include" in raw:
        return _joined(name, raw, weights, where)
    for key in ("seeds", "backbone", "settings"):
        if not raw.get(key):
            raise UserError(f"{where} lacks {key!r}.")
    for method in raw.get("params", {}):
        if method != "all":
            registry().get(method)
    variants = {key: _variant(key, entry, where) for key, entry in raw.get("variants", {}).items()}
    backbone = backbone_spec(raw["backbone"], weights or raw.get("weights"), raw.get("image_size"))
    settings = tuple(setting for entry in raw["settings"] for setting in _expand(entry, raw, variants, where))
    tune = _tune(raw.get("tune", {}), raw["seeds"], where)
    return Suite(name, raw.get("title", name), backbone, tuple(raw["seeds"]), settings, tune)


def _joined(name: str, raw: Mapping[str, Any], weights: str | None, where: str) -> Suite:
    """The settings of other suites as one."""
    _known(raw, {"title", "include"}, f"{where}, which includes others")
    parts = [load_suite(part, weights) for part in raw["include"]]
    if not parts:
        raise UserError(f"{where} includes nothing.")
    first = parts[0]
    for part in parts:
        if (part.backbone, part.seeds, part.tune) != (first.backbone, first.seeds, first.tune):
            raise UserError(f"{where}: {first.name} and {part.name} differ in backbone, seeds or tuning.")
    settings = tuple(setting for part in parts for setting in part.settings)
    return replace(first, name=name, title=raw.get("title", name), settings=settings)


def _expand(
    entry: Mapping[str, Any], raw: Mapping[str, Any], variants: Mapping[str, Row], where: str
) -> Iterator[Setting]:
    """One setting for each combination of the placeholders' values."""
    text = entry.get("partition", "")
    holes = [hole for _, hole, _, _ in string.Formatter().parse(text) if hole]
    _known(entry, SETTING_KEYS | set(holes), f"settings of {where}")
    for key in ("table", "dataset", "partition", *holes):
        if key not in entry:
            raise UserError(f"a setting of {where} lacks {key!r}.")
    kind, reference = entry.get("kind", KINDS[0]), entry.get("reference", "")
    if kind not in KINDS:
        raise unknown(f"kind of setting in {where}", kind, KINDS)
    rows = _rows(entry.get("methods", raw.get("methods", "all")), variants)
    if reference and reference not in {row.key for row in rows}:
        raise unknown(f"reference in {where}", reference, {row.key for row in rows})
    levels = (raw.get("params", {}), entry.get("params", {}))
    params = {name: _params(name, levels, where) for name in registry().names()}
    protocol = {**raw.get("protocol", {}), **entry.get("protocol", {})}
    for values in itertools.product(*(entry[hole] for hole in holes)):
        chosen = dict(zip(holes, values, strict=True))
        label = ", ".join(f"{key}={value}" for key, value in chosen.items()) or text
        yield Setting(
            entry["table"],
            label,
            entry["dataset"],
            text.format(**chosen),
            rows,
            kind,
            entry.get("published", ""),
            reference,
            protocol,
            params,
        )


def _rows(methods: str | Sequence[str], variants: Mapping[str, Row]) -> tuple[Row, ...]:
    """`all`, alone or in a list, is every registered method, without variants."""
    given = [methods] if methods == "all" else methods
    names = [name for each in given for name in (registry().names() if each == "all" else [each])]
    return tuple(variants.get(name) or Row(name, registry().get(name).title, name) for name in names)


def _variant(key: str, entry: Mapping[str, Any], where: str) -> Row:
    _known(entry, VARIANT_KEYS, f"variants.{key} of {where}")
    if key in registry().names():
        raise UserError(f"variants.{key} of {where} has the name of a method; choose another.")
    if "method" not in entry:
        raise UserError(f"variants.{key} of {where} lacks 'method'.")
    registry().get(entry["method"])
    return Row(key, entry.get("title", key), entry["method"], entry.get("params", {}))


def _tune(entry: Mapping[str, Any], seeds: Sequence[int], where: str) -> Tune:
    _known(entry, {field.name for field in fields(Tune)}, f"tune of {where}")
    tune = Tune(**{**entry, "seeds": tuple(entry.get("seeds", Tune.seeds))})
    shared = set(tune.seeds) & set(seeds)
    if shared:
        raise UserError(f"{where}: seed {min(shared)} is for reporting and for tuning; choose others in [tune].")
    protocol = {"val_fraction": 0.1, "last": 1, "sweep": False, **tune.protocol}
    if not protocol["val_fraction"]:
        raise UserError(f"{where}: tune.protocol.val_fraction = 0 would choose on test data; hold some data out.")
    return replace(tune, protocol=protocol)


def _params(method: str, levels: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    """What the suite, then the setting, say for every method and for this one; the later and the closer wins."""
    own = {field.name for field in fields(registry().get(method).Params)}
    anywhere = {field.name for name in registry().names() for field in fields(registry().get(name).Params)}
    chosen: dict[str, Any] = {}
    for level in levels:
        _known(level.get("all", {}), anywhere, f"params.all of {where}")
        chosen |= {key: value for key, value in level.get("all", {}).items() if key in own}
        chosen |= level.get(method, {})
    return chosen


def _known(mapping: Mapping[str, Any], keys: set[str], where: str) -> None:
    for key in mapping:
        if key not in keys:
            raise unknown(f"key in {where}", key, keys)
