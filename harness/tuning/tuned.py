"""The tuned file: which values were selected for which setting, and how; and a suite that uses them.

The file is sorted and has no dates, so equal studies give equal files. Neither Optuna nor MLflow is imported here.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import tomli_w

from fedprompt.core.errors import UserError
from fedprompt.core.fields import build
from fedprompt.core.files import write_atomic
from fedprompt.core.untrusted import MB, read_toml
from fedprompt.harness.running.suite import Key, Suite
from fedprompt.harness.running.suite_shape import (
    COUNT,
    ENTRIES,
    FIELDS,
    NUMBER,
    SEEDS,
    TEXT,
    VALUES,
    Shape,
    check_shape,
)
from fedprompt.harness.tuning.propose import edge_rates, open_axes
from fedprompt.harness.tuning.search import (
    KEY_NAMES,
    Result,
    Search,
    cell_key,
    chosen_result,
    portable,
    searches,
    study_keys,
)
from fedprompt.methods import registry

ROOT = Path(__file__).parents[2]  # of the checkout, or of the installed package
FORMAT = 2  # files of other formats are not used
HEADER = (
    "# Written by `fedprompt tune`: chosen on held-out training data, never on test data. `fedprompt bench` uses it.\n"
)


REPEAT = Shape(
    "a list of tables with seed, params and loss",
    lambda value: (
        isinstance(value, list)
        and all(isinstance(choice, dict) and choice.keys() == {"seed", "params", "loss"} for choice in value)
    ),
)
SHAPES = {
    **dict.fromkeys((*KEY_NAMES, "study", "setup", "sampler", "code"), TEXT),
    **dict.fromkeys(("value", "default_value"), NUMBER),
    **dict.fromkeys(("trials", "finished", "failed"), COUNT),
    **dict.fromkeys(("at_edge", "untried"), VALUES),
    **{"params": FIELDS, "seeds": SEEDS, "repeat": REPEAT},
}


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The outcome of one study."""

    method: str
    dataset: str
    partition: str
    head: str  # its owner
    params: Mapping[str, Any]  # the searched ones
    study: str
    setup: str  # digest of what was searched where; equal in suites that share the setting
    value: float  # validation accuracy with these params, mean over all tuning seeds
    default_value: float | None = None  # with the suite's own values; none if they failed
    trials: int
    finished: int
    failed: int  # trials without a value
    seeds: tuple[int, ...]
    at_edge: tuple[str, ...]  # rates whose least or greatest tried value was chosen
    untried: tuple[str, ...]  # parameters along which a neighbour of the choice was not tried
    # What each seed of the search alone would have chosen among the points tried: seed, params, and the loss in
    # validation accuracy against the choice (mean over all seeds that both were run on); empty if there is one seed.
    repeat: tuple[Mapping[str, Any], ...]
    sampler: str
    code: str  # version of the code that ran the trials

    @property
    def key(self) -> Key:
        return self.method, self.dataset, self.partition, self.head


class Choice(NamedTuple):
    """A study's outcome, the file that it comes from, and whether it was made for what the suite searches now."""

    entry: Tuned
    path: Path
    current: bool


def tuned_entry(search: Search, results: Sequence[Result]) -> Tuned | None:
    """The best of ``results``, of which the first is the default's; None if no point finished."""
    best, default_value = chosen_result(search, results), results[0].value
    if best is None or best.value is None:
        return None
    finished = sum(result.value is not None for result in results)
    dataset = search.key[1]
    return Tuned(
        **{**dict(zip(KEY_NAMES, search.key, strict=True)), "dataset": portable(dataset)},
        params=best.point,
        study=search.name.replace(dataset, portable(dataset)),
        setup=search.setup,
        value=round(best.score, 6),
        default_value=None if default_value is None else round(default_value, 6),
        trials=len(results),
        finished=finished,
        failed=len(results) - finished,
        seeds=tuple(cell.seed for cell in (*search.base, *search.finals)),
        at_edge=tuple(edge_rates(search, results, best.point)),
        untried=tuple(open_axes(search, results, best.point)),
        repeat=_repeat(search, results, best),
        sampler=search.sampler,
        code=search.base[0].code,
    )


def _repeat(search: Search, results: Sequence[Result], best: Result) -> tuple[Mapping[str, Any], ...]:
    """What each seed of the search alone would have chosen."""
    if len(search.base) == 1:
        return ()
    finished = [result for result in results if result.value is not None]
    choices = []
    for index, cell in enumerate(search.base):
        alone = max(finished, key=lambda result: round(result.by_seed[index], 9))
        losses = [ours - its for ours, its in zip(best.all_seeds, alone.all_seeds, strict=False)]
        choices.append({"seed": cell.seed, "params": alone.point, "loss": round(mean(losses), 6)})
    return tuple(choices)


def read_tuned(path: Path) -> list[Tuned]:
    """The entries of the file; none if it has another format."""
    try:
        raw = read_toml(path, limit=4 * MB)
    except UserError as error:
        raise UserError(f"tuned values {path} cannot be read ({error}); tune again, or pass --untuned.") from error
    if raw.pop("format", 1) != FORMAT:
        return []
    check_shape(raw, {"study": ENTRIES}, str(path))
    return [_entry(entry, path) for entry in raw.get("study", [])]


def _entry(raw: Mapping[str, Any], path: Path) -> Tuned:
    check_shape(raw, SHAPES, f"a study in {path}")
    for field in fields(Tuned):
        if field.name not in raw and field.default is MISSING:
            raise UserError(f"a study in {path} lacks {field.name!r}; tune again, or pass --untuned.")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    return Tuned(**values)


def write_tuned(path: Path, entries: Iterable[Tuned]) -> None:
    """Replaces the file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = [_table(entry) for entry in sorted(entries, key=lambda entry: entry.key)]
    write_atomic(path, (HEADER + "\n" + tomli_w.dumps({"format": FORMAT, "study": tables})).encode())


def _table(entry: Tuned) -> dict[str, Any]:
    table = {name: value for name, value in asdict(entry).items() if value is not None}
    repeat = [{**choice, "params": _without_null(choice["params"])} for choice in entry.repeat]
    return {**table, "params": _without_null(entry.params), "repeat": repeat}


def _without_null(params: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no null: a parameter that is None is written as the text `none`, which fields read as None."""
    return {name: "none" if value is None else value for name, value in params.items()}


def tuned_path(suite: Suite, out: Path) -> Path:
    return out / "tuned" / f"{suite.name}.toml"


def load_tuned(path: Path) -> dict[Key, Mapping[str, Any]]:
    """The tuned parameters as `Suite.tuned` has them."""
    return {entry.key: entry.params for entry in read_tuned(path)}


def shipped_folder() -> Path:
    """The values that come with the package."""
    checkout = ROOT / "results" / "tuned"
    return checkout if checkout.is_dir() else ROOT / "tuned"


def _files(suite: Suite, out: Path) -> list[Path]:
    """Tuned files, those of ``out`` before those of the package, and in each folder the suite's own first."""
    own, shipped = tuned_path(suite, out).parent, shipped_folder()
    folders = [own] if own.resolve() == shipped.resolve() else [own, shipped]
    return [
        file
        for folder in folders
        for file in sorted(folder.glob("*.toml"), key=lambda file: (file.stem != suite.name, file.name))
    ]


def tuned_choices(suite: Suite, out: Path) -> list[Choice]:
    """What the suite uses: its own file's values, and those of other suites that searched the same.

    So values of `paper` serve the suites that it includes, and the other way round. Files of ``out`` come before those
    of the package. A study that is out of date counts only if it is of this suite, and if there is no other.
    """
    local_names = {portable(setting.dataset): setting.dataset for setting in suite.settings}
    found = [
        (replace(entry, dataset=local_names.get(entry.dataset, entry.dataset)), file)
        for file in _files(suite, out)
        for entry in read_tuned(file)
    ]
    if not found:
        return []
    setups = {search.key: search.setup for search in searches(suite)}
    choices = [Choice(entry, file, setups.get(entry.key) == entry.setup) for entry, file in found]
    by_key: dict[Key, Choice] = {}
    for choice in sorted(choices, key=lambda choice: not choice.current):
        if choice.current or choice.path.stem == suite.name:
            by_key.setdefault(choice.entry.key, choice)
    return [by_key[key] for key in dict.fromkeys(study_keys(suite).values()) if key in by_key]


def undecided(wanted: Iterable[Search], suite: Suite, out: Path) -> list[Search]:
    """Searches without a choice in a tuned file: of the same setup and sampler, as large a budget, and no failures."""
    entries = {choice.entry.setup: choice.entry for choice in tuned_choices(suite, out)}

    def is_decided(search: Search) -> bool:
        entry = entries.get(search.setup)
        return (
            entry is not None and entry.sampler == search.sampler and entry.trials >= search.trials and not entry.failed
        )

    return [search for search in wanted if not is_decided(search)]


def with_tuned(suite: Suite, out: Path) -> Suite:
    """The suite with the values that `fedprompt tune` selected for it, if there are any; says so on stderr."""
    choices, path = tuned_choices(suite, out), tuned_path(suite, out)
    if path.is_file() and not read_tuned(path):
        _tell(f"warning: {path} was written by another version and is not used; run `fedprompt tune {suite.argument}`")
    for entry, file, _ in choices:
        shared_seeds = set(suite.seeds) & set(entry.seeds)
        if shared_seeds:
            seed = min(shared_seeds)
            raise UserError(f"seed {seed} is one that {file} was tuned on; choose others, or pass --untuned.")
        build(registry().get(entry.method).Params, entry.params, f"{file}: parameters of {entry.method}")
    # Not by the code: values are choices, not results, and those of the package outlive most of its commits.
    outdated = [choice for choice in choices if not choice.current]
    if outdated:
        _tell(
            f"warning: {len(outdated)} of {len(choices)} choices in {outdated[0].path} were made for another state of "
            f"the suite (such as {outdated[0].entry.study}); run `fedprompt tune {suite.argument}` again, "
            "or pass --untuned"
        )
    params = {entry.key: entry.params for entry, _, _ in choices}
    tuned = {key: params[study] for key, study in study_keys(suite).items() if study in params}
    suite = replace(suite, tuned=tuned) if tuned else suite
    if choices:
        cells = suite.cells()
        count = sum(cell_key(cell) in tuned for cell in cells)
        files = ", ".join(dict.fromkeys(_named(choice.path, out) for choice in choices))
        which = "all" if count == len(cells) else f"{count} of {len(cells)}"
        _tell(f"{which} cells use tuned values from {files} (--untuned: none)")
    untuned = suite.untuned()
    if untuned:
        names = {entry.setting.source_method(entry.row) for entry in untuned}
        _tell(f"warning: {', '.join(sorted(names))}: not tuned, while others are; {suite.command('tune', names)}")
    return suite


def _named(file: Path, out: Path) -> str:
    """The file as messages name it."""
    return str(file) if file.parent == out / "tuned" else f"the package ({file.name})"


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def tuning_notes(entries: Sequence[Tuned]) -> list[str]:
    """How much the choices can be relied on, in sentences for the report."""
    if not entries:
        return []
    trials = sorted({entry.trials for entry in entries})
    failed = sum(entry.failed for entry in entries)
    at_edge = [entry for entry in entries if entry.at_edge]
    rates = sorted({name for entry in at_edge for name in entry.at_edge})
    shares = ", ".join(f"{name} {sum(name in entry.at_edge for entry in at_edge)}" for name in rates)
    unsettled = sum(bool(entry.untried) and not entry.at_edge for entry in entries)
    return [
        f"{len(entries)} studies of {trials[0] if len(trials) == 1 else f'{trials[0]} to {trials[-1]}'} trials each; "
        f"{failed} of {sum(entry.trials for entry in entries)} trials failed and counted as the worst.",
        f"{len(at_edge)} of {len(entries)} choices lie at an edge of the tried rates{shares and f' ({shares})'}; "
        f"around {unsettled} others the trials ended before every neighbouring value was tried.",
        *_repeat_notes(entries),
    ]


def _repeat_notes(entries: Sequence[Tuned]) -> list[str]:
    repeats = [(entry, choice) for entry in entries for choice in entry.repeat]
    if not repeats:
        return ["With one tuning seed nothing can be said about whether a choice repeats."]
    same = sum(dict(choice["params"]) == dict(entry.params) for entry, choice in repeats)
    losses = [100 * choice["loss"] for _, choice in repeats]
    return [
        f"A tuning seed alone would have chosen the same point in {same} of {len(repeats)} cases; its choices lose "
        f"{sum(losses) / len(losses):.1f} points of validation accuracy on average, {max(losses):.1f} at most."
    ]
