"""A suite as a TOML file.

title = "..."            methods = "all" or a list       seeds = [0, 1]
policies = ["local", "global", "global_then_ft"] of the head, for all methods (default: ["paper"], each method's own)
control = "zs-clip"      the row that all gains are taken over (default: no prompt under the same policy)
backbone = "micro-vit"   weights = "..." (optional)      image_size = 32 (optional)
[protocol]               fields of the protocol, for every cell
[params.METHOD]          parameters of one method, for every cell; [params.all] for each method that has them
[variants.KEY]           one more row: method, title, params; named in `methods` by its key
[tune]                   seeds, trials, finals, tie, [tune.protocol], [tune.grid]: how `fedprompt tune` searches;
                         shared = true makes one study per method, data set and owner of the head, in the first setting;
                         [tune.start.local] and [tune.start.global]: where a search begins, by the owner of the head
[[settings]]             table = "Feature shift", dataset, partition = "domains:m={m}", m = [1, 3, 6]
                         (one list per placeholder), label (of the column; default: the placeholders' values),
                         methods, policies, control,
                         kind (heterogeneity, unseen, ablation, vsweep, or novel, target for what nobody trains on),
                         published = "DomainNet" or "clip/DomainNet" (whose printed values are shown next to ours: of
                         the ViT paper or of the CLIP paper), reference (of an ablation),
                         [settings.protocol] and [settings.params.METHOD] for these cells
include = ["...", ...]   instead of settings: those of other suites, with the same backbone and seeds
"""

import itertools
import math
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedprompt.backbones.weights import backbone_spec, offered
from fedprompt.core.errors import UserError, check_keys, unknown
from fedprompt.core.untrusted import read_toml
from fedprompt.datasets import parse_partition
from fedprompt.harness.federation.policy import PAPER, POLICIES, applicable
from fedprompt.harness.measuring.measures import measure_names
from fedprompt.harness.running import suite_shape as shape
from fedprompt.harness.running.suite import KINDS, Row, Setting, Suite, Tune
from fedprompt.harness.running.suite_shape import OWNERS, check_shape
from fedprompt.methods import registry

FOLDER = Path(__file__).parent / "suites"
MOST = 1000  # settings that the placeholders of one entry may make


def suite_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def suite_path(name: str) -> Path:
    """The file of a suite that comes with the package, by name, or of any other by its path."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        exists = path.is_file()
    except OSError:  # no file can have such a name
        exists = False
    if not exists and name.endswith(".toml"):
        raise UserError(
            f"there is no suite file {name!r} (looked for {str(path.absolute())[:300]!r}); give the path of yours, or "
            f"the name of one that comes with the package: {', '.join(suite_names())}."
        )
    if not exists:
        raise unknown("suite", name, suite_names(), "A suite of your own: a path that ends in .toml.")
    if not re.fullmatch(r"\w[\w .+-]*", path.stem):  # reports and tuned values are written to places of this name
        raise UserError(f"suite {name!r}: its name must begin with a letter or a digit and have no signs but .+-_")
    return path


def load_suite(name: str, weights: str | None = None) -> Suite:
    """A suite that comes with the package, by name, or any other by the path of its file.

    ``weights`` (a file, `hub` or `random`) replaces what the suite says.
    """
    return _load(name, weights, ())


def _load(name: str, weights: str | None, including: tuple[Path, ...]) -> Suite:
    """``including`` are the suites on the way here."""
    path = suite_path(name)
    if path.resolve() in including:
        raise UserError(f"suite {including[0].stem!r} includes itself, by way of {including[-1].name}.")
    suite = parse_suite(path.stem, read_toml(path), weights, (*including, path.resolve()))
    return replace(suite, file=name if name.endswith(".toml") else "")


def parse_suite(
    name: str, raw: Mapping[str, Any], weights: str | None = None, including: tuple[Path, ...] = ()
) -> Suite:
    where = f"suite {name!r}"
    check_shape(raw, shape.SUITE, where)
    if "include" in raw:
        return _joined(name, raw, weights, where, including)
    for key in ("seeds", "backbone", "settings"):
        if key not in raw:
            raise UserError(f"{where} lacks {key!r}.")
    _check_methods(raw.get("params", {}), where)
    variants = {key: _variant(key, entry, where) for key, entry in raw.get("variants", {}).items()}
    backbone = backbone_spec(raw["backbone"], weights or raw.get("weights"), raw.get("image_size"))
    settings = tuple(setting for entry in raw["settings"] for setting in _expand(entry, raw, variants, where))
    tune = _tune(raw.get("tune", {}), raw["seeds"], where)
    measures = _measures(raw.get("report", {}), where)
    return Suite(name, raw.get("title", name), backbone, tuple(raw["seeds"]), settings, tune, measures=measures)


def _measures(entry: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """What reports make tables of."""
    check_shape(entry, shape.REPORT, f"report of {where}")
    chosen = tuple(entry.get("measures", Suite.measures))
    for name in chosen:
        if name not in measure_names():
            raise unknown(f"measure in report of {where}", name, measure_names())
    return chosen


def _check_methods(params: Mapping[str, Any], where: str) -> None:
    """Parameters are named by methods, not by their aliases."""
    for method in params:
        if method != "all" and registry().resolve(method)[0] != method:
            raise UserError(
                f"params.{method} of {where}: {method} is an alias; write params.{registry().resolve(method)[0]}."
            )


def _joined(name: str, raw: Mapping[str, Any], weights: str | None, where: str, including: tuple[Path, ...]) -> Suite:
    """The settings of other suites as one."""
    check_keys(raw, {"title", "include", "report"}, f"{where}, which includes others")
    parts = [_load(part, weights, including) for part in raw["include"]]
    first = parts[0]
    for part in parts:
        if (part.backbone, part.seeds, part.tune) != (first.backbone, first.seeds, first.tune):
            raise UserError(f"{where}: {first.name} and {part.name} differ in backbone, seeds or tuning.")
    settings = tuple(setting for part in parts for setting in part.settings)
    measures = _measures(raw["report"], where) if "report" in raw else first.measures
    return replace(first, name=name, title=raw.get("title", name), settings=settings, measures=measures)


def _expand(
    entry: Mapping[str, Any], raw: Mapping[str, Any], variants: Mapping[str, Row], where: str
) -> Iterator[Setting]:
    """One setting for each combination of the placeholders' values."""
    holes = _placeholders(entry.get("partition", ""), where)
    check_shape(entry, {**shape.SETTING, **dict.fromkeys(holes, shape.VALUES)}, f"settings of {where}")
    text = entry.get("partition", "")
    for key in ("table", "dataset", "partition", *holes):
        if key not in entry:
            raise UserError(f"a setting of {where} lacks {key!r}.")
    kind, reference = entry.get("kind", KINDS[0]), entry.get("reference", "")
    if kind not in KINDS:
        raise unknown(f"kind of setting in {where}", kind, KINDS)
    rows = _rows(entry.get("methods", raw.get("methods", "all")), variants, offered(raw["backbone"]))
    if reference and reference not in {row.key for row in rows}:
        raise unknown(f"reference in {where}", reference, {row.key for row in rows})
    control = entry.get("control", raw.get("control", ""))
    if control and control not in {row.key for row in rows}:
        raise unknown(f"control in {where}", control, {row.key for row in rows})
    policies = _policies(entry.get("policies", raw.get("policies", [PAPER])), rows, where)
    _check_methods(entry.get("params", {}), f"settings of {where}")
    levels = (raw.get("params", {}), entry.get("params", {}))
    params = {name: _params(name, levels, where) for name in registry().names()}
    protocol = {**raw.get("protocol", {}), **entry.get("protocol", {})}
    named = [entry["label"]] if "label" in entry else []
    count = math.prod(len(entry[hole]) for hole in holes)
    if not 0 < count <= MOST:
        raise UserError(f"{where}: the placeholders of {text!r} make {count} settings; 1 to {MOST} are allowed.")
    for values in itertools.product(*(entry[hole] for hole in holes)):
        filling = dict(zip(holes, values, strict=True))
        _check_held_out(kind, text.format(**filling), where)
        yield Setting(
            table=entry["table"],
            label=", ".join([*named, *(f"{key}={value}" for key, value in filling.items())]) or text,
            dataset=entry["dataset"],
            partition=text.format(**filling),
            rows=rows,
            kind=kind,
            published=entry.get("published", ""),
            reference=reference,
            control=control,
            protocol=protocol,
            params=params,
            policies=policies,
        )


def _placeholders(partition: object, where: str) -> list[str]:
    """The names in braces; nothing else may stand in them."""
    try:
        parts = list(string.Formatter().parse(partition if isinstance(partition, str) else ""))
    except ValueError as error:
        raise UserError(f"{where}: partition = {partition!r} has a brace too many or too few ({error}).") from error
    holes = [(hole, form, conversion) for _, hole, form, conversion in parts if hole is not None]
    for hole, form, conversion in holes:
        if not hole.isidentifier() or form or conversion or hole in shape.SETTING:
            raise UserError(f"{where}: partition = {partition!r} needs names in its braces, such as {{m}}.")
    return list(dict.fromkeys(hole for hole, _, _ in holes))


def _check_held_out(kind: str, partition: str, where: str) -> None:
    """Only a partition that keeps something out of training can show what was learned of it."""
    spec = parse_partition(partition)
    if (kind == "novel" and spec.novel == "none") or (kind == "target" and not spec.target):
        needed = {"novel": "novel=half", "target": "target=DOMAIN"}[kind]
        raise UserError(f"{where}: kind {kind!r} needs {needed} in its partition {partition!r}.")


def _rows(methods: str | Sequence[str], variants: Mapping[str, Row], offers: frozenset[str]) -> tuple[Row, ...]:
    """`all`, alone or in a list, means every method that the backbone can serve, without variants and aliases."""
    entries = [methods] if methods == "all" else methods
    names = [name for entry in entries for name in (registry().names(offers) if entry == "all" else [entry])]
    rows = [variants.get(name) or _row(name) for name in dict.fromkeys(names)]
    titles = Counter(row.title for row in rows)  # a plugin that extends a method may have inherited its title
    return tuple(replace(row, title=f"{row.title} ({row.key})") if titles[row.title] > 1 else row for row in rows)


def _row(name: str) -> Row:
    method, policy = registry().resolve(name)
    return Row(name, registry().title(name), method, policy=policy)


def _policies(names: Sequence[str], rows: Sequence[Row], where: str) -> tuple[str, ...]:
    for name in names:
        if name not in (*POLICIES, PAPER):
            raise unknown(f"policy in {where}", name, (*POLICIES, PAPER))
    for row in rows:
        if row.policy and not {row.policy, PAPER} & set(names):
            raise UserError(f"{where}: {row.key} is {row.method} with the policy {row.policy!r}, which policies lacks.")
        possible = applicable(registry().get(row.method).paper_policy)
        if not {*possible, PAPER} & set(names):
            raise UserError(
                f"{where}: {row.key} has the policies {', '.join(possible)}, and policies lacks all of them."
            )
    return tuple(dict.fromkeys(names))


def _variant(key: str, entry: Mapping[str, Any], where: str) -> Row:
    check_shape(entry, shape.VARIANT, f"variants.{key} of {where}")
    if key in registry():
        raise UserError(f"variants.{key} of {where} has the name of a method; choose another.")
    if "method" not in entry:
        raise UserError(f"variants.{key} of {where} lacks 'method'.")
    method, policy = registry().resolve(entry["method"])
    return Row(key, entry.get("title", key), method, entry.get("params", {}), policy)


def _tune(entry: Mapping[str, Any], seeds: Sequence[int], where: str) -> Tune:
    check_shape(entry, shape.TUNING, f"tune of {where}")
    listed = {name: tuple(entry.get(name, getattr(Tune, name))) for name in ("seeds", "finals")}
    tune = Tune(**{**entry, **listed})
    check_keys(tune.start, OWNERS, f"tune.start of {where}")
    for owner, params in tune.start.items():
        check_keys(params, _known_parameters(), f"tune.start.{owner} of {where}")
    if set(tune.seeds) & set(tune.finals):
        seed = min(set(tune.seeds) & set(tune.finals))
        raise UserError(f"{where}: seed {seed} is in tune.seeds and in tune.finals; choose others for the finals.")
    shared = {*tune.seeds, *tune.finals} & set(seeds)
    if shared:
        raise UserError(f"{where}: seed {min(shared)} is for reporting and for tuning; choose others in [tune].")
    protocol = {"val_fraction": 0.1, "last": 1, "sweep": False, **tune.protocol}
    if not protocol["val_fraction"]:
        raise UserError(f"{where}: tune.protocol.val_fraction = 0 would choose on test data; hold some data out.")
    return replace(tune, protocol=protocol)


def _params(method: str, levels: Sequence[Mapping[str, Any]], where: str) -> dict[str, Any]:
    """What the suite and then the setting say: for every method that has the parameter, then for this one."""
    accepted = _parameter_names(method)
    params: dict[str, Any] = {}
    for level in levels:
        check_keys(level.get("all", {}), _known_parameters(), f"params.all of {where}")
        params |= {key: value for key, value in level.get("all", {}).items() if key in accepted}
        params |= level.get(method, {})
    return params


def _known_parameters() -> set[str]:
    return {parameter for name in registry().names() for parameter in _parameter_names(name)}


def _parameter_names(method: str) -> set[str]:
    return {field.name for field in fields(registry().get(method).Params)}
