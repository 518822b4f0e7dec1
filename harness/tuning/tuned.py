"""The tuned file: which values were selected for which setting, and how; and a suite that uses them.

The file is sorted and has no dates, so equal studies give equal files. Neither Optuna nor MLflow is imported here.
"""

import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import tomli_w

from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.core.errors import UserError, check_keys
from fedprompt.harness.core.fields import build
from fedprompt.harness.core.files import write_atomic
from fedprompt.harness.tuning.search import SAMPLERS, Key, Result, Search, best_result, searches, setting_key
from fedprompt.methods import registry

HEADER = (
    "# Written by `fedprompt tune`: chosen on held-out training data, never on test data. `fedprompt bench` uses it.\n"
)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The outcome of one study."""

    method: str
    dataset: str
    partition: str
    params: Mapping[str, Any]  # the searched ones
    study: str
    value: float  # validation accuracy with these params, mean over the tuning seeds
    default_value: float | None = None  # with the suite's own values; none if they failed
    finished: int  # points tried
    failed: int  # points that did not finish
    seeds: tuple[int, ...]
    sampler: str
    code: str  # version of the code that ran the trials

    @property
    def key(self) -> Key:
        return self.method, self.dataset, self.partition


def tuned_entry(search: Search, results: Sequence[Result]) -> Tuned | None:
    """The best of ``results``, of which the first is the default's; None if no point finished."""
    best, default_value = best_result(results), results[0].value
    if best is None or best.value is None:
        return None
    finished = sum(result.value is not None for result in results)
    return Tuned(
        **dict(zip(("method", "dataset", "partition"), search.key, strict=True)),
        params=best.point,
        study=search.name,
        value=round(best.value, 6),
        default_value=None if default_value is None else round(default_value, 6),
        finished=finished,
        failed=len(results) - finished,
        seeds=tuple(cell.seed for cell in search.base),
        sampler=search.sampler,
        code=search.base[0].code,
    )


def read_tuned(path: Path) -> list[Tuned]:
    try:
        raw = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"tuned values {path} cannot be read ({error}); tune again, or pass --untuned.") from error
    check_keys(raw, {"study"}, str(path))
    return [_entry(entry, path) for entry in raw.get("study", [])]


def _entry(raw: Mapping[str, Any], path: Path) -> Tuned:
    check_keys(raw, {field.name for field in fields(Tuned)}, str(path))
    for field in fields(Tuned):
        if field.name not in raw and field.default is MISSING:
            raise UserError(f"a study in {path} lacks {field.name!r}; tune again, or pass --untuned.")
    return Tuned(**{**raw, "seeds": tuple(raw["seeds"])})


def write_tuned(path: Path, entries: Iterable[Tuned]) -> None:
    """Replaces the file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tables = [_table(entry) for entry in sorted(entries, key=lambda entry: entry.key)]
    write_atomic(path, (HEADER + "\n" + tomli_w.dumps({"study": tables})).encode())


def _table(entry: Tuned) -> dict[str, Any]:
    """TOML has no null: a parameter that is None is written as the text `none`, which fields read as None."""
    table = {name: value for name, value in asdict(entry).items() if value is not None}
    return {**table, "params": {name: "none" if value is None else value for name, value in entry.params.items()}}


def tuned_path(suite: Suite, out: Path) -> Path:
    return out / "tuned" / f"{suite.name}.toml"


def load_tuned(path: Path) -> dict[Key, Mapping[str, Any]]:
    """The tuned parameters as `Suite.tuned` has them."""
    return {entry.key: entry.params for entry in read_tuned(path)}


def with_tuned(suite: Suite, out: Path) -> Suite:
    """The suite with the values that `fedprompt tune` selected for it, if there are any."""
    path = tuned_path(suite, out)
    if not path.is_file():
        return suite
    shared_seeds = set(suite.seeds) & set(suite.tune.seeds)
    if shared_seeds:
        raise UserError(f"seed {min(shared_seeds)} is one that {path} was tuned on; choose others, or pass --untuned.")
    keys = {setting_key(row.method, setting) for setting in suite.settings for row in setting.rows}
    used = [entry for entry in read_tuned(path) if entry.key in keys]
    for entry in used:
        build(registry().get(entry.method).Params, entry.params, f"{path}: parameters of {entry.method}")
    current = {replace(search, sampler=sampler).name for search in searches(suite) for sampler in SAMPLERS}
    outdated = [entry for entry in used if entry.study not in current]
    if outdated:
        print(
            f"warning: {len(outdated)} of {len(used)} choices in {path} were made for another state of the suite or "
            f"the code (such as {outdated[0].study}); run `fedprompt tune {suite.name}` again, or pass --untuned",
            file=sys.stderr,
        )
    return replace(suite, tuned={entry.key: entry.params for entry in used})
