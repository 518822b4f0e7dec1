"""What may stand where in a suite's TOML: every value has a type before anything is made of it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fedprompt.core.errors import UserError, check_keys
from fedprompt.harness.federation.policy import PAPER, POLICIES, head_owner

OWNERS = tuple(dict.fromkeys(map(head_owner, POLICIES)))  # of the head


class Shape(NamedTuple):
    words: str  # what is allowed, for messages
    fits: Callable[[Any], bool]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and value.isprintable()


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_seeds(value: object) -> bool:
    return _is_list(value, lambda seed: _is_whole(seed) and seed >= 0) and bool(value)


def _is_scalar(value: object) -> bool:
    return isinstance(value, bool | int | float) or _is_text(value)


def _is_list(value: object, of: Callable[[Any], bool]) -> bool:
    """Of distinct values: one that is repeated would count twice."""
    return isinstance(value, list | tuple) and all(map(of, value)) and len(set(value)) == len(value)


def _is_table(value: object, of: Callable[[Any], bool]) -> bool:
    return isinstance(value, Mapping) and all(_is_text(key) and of(entry) for key, entry in value.items())


TEXT = Shape("text", _is_text)
NUMBER = Shape("a number", lambda value: isinstance(value, int | float) and not isinstance(value, bool))
COUNT = Shape("a whole number from 0 on", lambda value: _is_whole(value) and value >= 0)
FRACTION = Shape("a number from 0 to 1", lambda value: NUMBER.fits(value) and 0 <= value <= 1)
WHOLE = Shape("a whole number above 0", lambda value: _is_whole(value) and value > 0)
SWITCH = Shape("true or false", lambda value: isinstance(value, bool))
SEEDS = Shape("a list of different whole numbers from 0 on", _is_seeds)
TEXTS = Shape("a list of different texts", lambda value: _is_list(value, _is_text) and bool(value))
NAMED_POLICIES = Shape(f"a list of {', '.join((*POLICIES, PAPER))}", TEXTS.fits)
METHODS = Shape('"all" or a list of different names', lambda value: value == "all" or TEXTS.fits(value))
VALUES = Shape("a list of different values", lambda value: _is_list(value, _is_scalar))
FIELDS = Shape("a table of single values", lambda value: _is_table(value, _is_scalar))
GRID = Shape("a table of lists", lambda value: _is_table(value, VALUES.fits))
PARAMS = Shape("a table with one table of single values per method", lambda value: _is_table(value, FIELDS.fits))
START = Shape(f"a table with one table of single values per owner of the head ({', '.join(OWNERS)})", PARAMS.fits)
TABLES = Shape("a table of tables", lambda value: _is_table(value, lambda entry: isinstance(entry, Mapping)))
ENTRIES = Shape(
    "a list of tables, written [[...]]",
    lambda value: isinstance(value, list | tuple) and all(isinstance(entry, Mapping) for entry in value),
)
SETTINGS = Shape(ENTRIES.words, lambda value: bool(value) and ENTRIES.fits(value))
TABLE = Shape("a table", lambda value: isinstance(value, Mapping))

SUITE = {
    **{"title": TEXT, "methods": METHODS, "seeds": SEEDS, "backbone": TEXT, "weights": TEXT, "image_size": WHOLE},
    **{"protocol": FIELDS, "params": PARAMS, "settings": SETTINGS, "variants": TABLES, "tune": TABLE},
    **{"include": TEXTS, "policies": NAMED_POLICIES, "control": TEXT, "report": TABLE},
}
SETTING = {
    **{"table": TEXT, "label": TEXT, "dataset": TEXT, "partition": TEXT, "kind": TEXT, "methods": METHODS},
    **{"published": TEXT, "reference": TEXT, "protocol": FIELDS, "params": PARAMS, "policies": NAMED_POLICIES},
    "control": TEXT,
}
VARIANT = {"method": TEXT, "title": TEXT, "params": FIELDS}
REPORT = {"measures": TEXTS}
TUNING = {
    **{"seeds": SEEDS, "finals": SEEDS, "trials": WHOLE, "tie": FRACTION},
    **{"protocol": FIELDS, "grid": GRID, "shared": SWITCH, "start": START},
}


def check_shape(raw: Mapping[str, Any], shapes: Mapping[str, Shape], where: str) -> None:
    """Refuse the first key that is unknown and the first value that does not fit."""
    check_keys(raw, shapes, where)
    for key, value in raw.items():
        if not shapes[key].fits(value):
            shown = repr(value)
            raise UserError(f"{where}: {key} = {shown[:60]}{'...' * (len(shown) > 60)} is not {shapes[key].words}.")
