"""A suite: a TOML file that names methods, settings and seeds, and expands to cells.

title = "..."            methods = "all" or a list       seeds = [0, 1]
backbone = "micro-vit"   weights = "..." (optional)      image_size = 32 (optional)
[protocol]               fields of the protocol, for every cell
[params.METHOD]          parameters of one method, for every cell; [params.all] for each method that has them
[[settings]]             table = "Feature shift", dataset, partition = "domains:m={m}", m = [1, 3, 6]
                         (one list a placeholder), [settings.protocol] and [settings.params.METHOD] for these cells
"""

import itertools
import string
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from fedprompt.harness.cell import Cell, make_cell
from fedprompt.harness.errors import UserError, unknown
from fedprompt.harness.weights import BackboneSpec, backbone_spec
from fedprompt.methods import registry

FOLDER = Path(__file__).parent / "suites"
KEYS = {"title", "methods", "seeds", "backbone", "weights", "image_size", "protocol", "params", "settings"}
SETTING_KEYS = {"table", "dataset", "partition", "protocol", "params"}


@dataclass(frozen=True)
class Setting:
    """One column of a table."""

    table: str  # the table's heading
    label: str  # the column's heading, such as `m=3`
    dataset: str
    partition: str
    protocol: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Suite:
    name: str
    title: str
    backbone: BackboneSpec
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: tuple[Setting, ...]

    def cells(self) -> Iterator[tuple[Setting, Cell]]:
        """Every cell, setting by setting, so that a table fills column by column."""
        for setting, method, seed in itertools.product(self.settings, self.methods, self.seeds):
            params = setting.params.get(method, {})
            yield (
                setting,
                make_cell(method, setting.dataset, setting.partition, self.backbone, seed, params, setting.protocol),
            )


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
    for key in ("seeds", "backbone", "settings"):
        if not raw.get(key):
            raise UserError(f"{where} lacks {key!r}.")
    methods = raw.get("methods", "all")
    names = registry().names() if methods == "all" else list(methods)
    for method in [*names, *(key for key in raw.get("params", {}) if key != "all")]:
        registry().get(method)
    backbone = backbone_spec(raw["backbone"], weights or raw.get("weights"), raw.get("image_size"))
    settings = tuple(setting for entry in raw["settings"] for setting in _expand(entry, raw, where))
    return Suite(name, raw.get("title", name), backbone, tuple(names), tuple(raw["seeds"]), settings)


def _expand(entry: Mapping[str, Any], raw: Mapping[str, Any], where: str) -> Iterator[Setting]:
    """One setting for each combination of the placeholders' values."""
    text = entry.get("partition", "")
    holes = [hole for _, hole, _, _ in string.Formatter().parse(text) if hole]
    _known(entry, SETTING_KEYS | set(holes), f"settings of {where}")
    for key in ("table", "dataset", "partition", *holes):
        if key not in entry:
            raise UserError(f"a setting of {where} lacks {key!r}.")
    levels = (raw.get("params", {}), entry.get("params", {}))
    params = {name: _params(name, levels, where) for name in registry().names()}
    protocol = {**raw.get("protocol", {}), **entry.get("protocol", {})}
    for values in itertools.product(*(entry[hole] for hole in holes)):
        chosen = dict(zip(holes, values, strict=True))
        label = ", ".join(f"{key}={value}" for key, value in chosen.items()) or text
        yield Setting(entry["table"], label, entry["dataset"], text.format(**chosen), protocol, params)


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
