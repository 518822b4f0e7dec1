"""The tuned file: what was chosen for which setting, and how. Sorted and without dates: equal studies, equal file."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedprompt.harness.core.errors import UserError, unknown
from fedprompt.harness.core.files import write_atomic

HEADER = (
    "# Written by `fedprompt tune`: chosen on held-out training data, never on test data. `fedprompt bench` uses it.\n"
)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What one study chose."""

    method: str
    dataset: str
    partition: str
    params: Mapping[str, Any]  # the searched ones
    study: str
    value: float  # validation accuracy of the choice, mean over the tuning seeds
    default_value: float | None = None  # of the suite's own values; none if they failed
    finished: int  # points tried
    failed: int  # points that never finished
    seeds: tuple[int, ...]
    sampler: str
    code: str  # version of the code that ran the trials

    @property
    def key(self) -> tuple[str, str, str]:
        return self.method, self.dataset, self.partition


def read_tuned(path: Path) -> list[Tuned]:
    try:
        raw = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"tuned values {path} cannot be read ({error}); tune again, or pass --untuned.") from error
    _known(raw, {"study"}, path)
    return [_entry(entry, path) for entry in raw.get("study", [])]


def _entry(raw: Mapping[str, Any], path: Path) -> Tuned:
    _known(raw, {field.name for field in fields(Tuned)}, path)
    for field in fields(Tuned):
        if field.name not in raw and field.default is MISSING:
            raise UserError(f"a study in {path} lacks {field.name!r}; tune again, or pass --untuned.")
    return Tuned(**{**raw, "seeds": tuple(raw["seeds"])})


def _known(raw: Mapping[str, Any], keys: set[str], path: Path) -> None:
    for key in raw:
        if key not in keys:
            raise unknown(f"key in {path}", key, keys)


def write_tuned(path: Path, entries: Iterable[Tuned]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = [_block(entry) for entry in sorted(entries, key=lambda entry: entry.key)]
    write_atomic(path, (HEADER + "".join(blocks)).encode())


def _block(entry: Tuned) -> str:
    lines = [f"{name} = {_toml(value)}\n" for name, value in asdict(entry).items() if value is not None]
    return "\n[[study]]\n" + "".join(lines)


def _toml(value: Any) -> str:
    """Text and truth values are written as in JSON; TOML has no null, which fields read from the word `none`."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps("none" if value is None else value, ensure_ascii=False)
