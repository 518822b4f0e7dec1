"""Options as frozen dataclasses: each field carries its meaning, its range and, where known, the paper's value."""

import dataclasses
import math
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_type_hints

from fedprompt.core.errors import UserError, check_keys, unknown

T = TypeVar("T")


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Collection[str] | None = None,
    paper: str = "",
    grid: Sequence[Any] = (),
) -> Any:
    """A field of a dataclass of options, with everything that help texts, checks and tuning need::

        @dataclass(frozen=True)
        class Params:
            lr: float = option(0.01, "learning rate of the prompt", low=0, paper="0.05", grid=(0.01, 0.1))

    Args:
        default: the value without further words; its type should match the annotation.
        help: one line that says what the value does, and what limit cases mean ("0 means FedAvg").
        low: smallest allowed value, inclusive.
        high: largest allowed value, inclusive.
        choices: the allowed texts.
        paper: the value of the paper, as text; empty where the paper is silent.
        grid: values that tuning tries. A learning rate only starts from them.
    """
    metadata = {
        "help": help,
        "low": low,
        "high": high,
        "choices": choices,
        "paper": paper,
        "grid": tuple(grid),
    }
    return dataclasses.field(default=default, metadata=metadata)


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """An instance of the dataclass ``cls`` from values as TOML or the command line gives them.

    Text is converted to the type of its field (``"1e-3"``, ``"false"``, ``"none"``) and compared with the field's range
    and choices. Unknown keys and bad values raise a UserError in which ``where`` names the place::

        build(Params, {"lr": "0.1"}, "method 'fedvpt'")
    """
    hints = get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    check_keys(values, fields, where)
    checked = {
        name: _check(fields[name], _convert(value, hints[name], f"{where}: {name}"), where)
        for name, value in values.items()
    }
    return cls(**checked)


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Text to the field's type. ``"False"`` is false: an untyped flag that is true for any text is a classic trap."""
    if isinstance(hint, types.UnionType):  # only `X | None` is used
        if value is None or value == "none":
            return None
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    try:
        if hint is bool:
            if isinstance(value, bool):
                return value
            return {"true": True, "false": False}[str(value).lower()]
        if hint is int:
            if isinstance(value, bool) or float(value) != int(float(value)):
                raise ValueError
            return value if isinstance(value, int) else int(float(value))  # a float would round a large one
        if hint is float and not isinstance(value, bool) and math.isfinite(float(value)):
            return float(value)
        if hint is str and isinstance(value, str):
            return value
    except (ValueError, KeyError, TypeError, OverflowError):
        pass
    allowed = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}.get(hint, str(hint))
    raise UserError(f"{where} = {value!r} is not {allowed}.")


def _check(field: "dataclasses.Field[Any]", value: Any, where: str) -> Any:
    meta = field.metadata
    if value is None:
        return value
    if meta.get("choices") and value not in meta["choices"]:
        raise unknown(f"value for {where}: {field.name}", str(value), meta["choices"])
    low, high = meta.get("low"), meta.get("high")
    inside = (low is None or value >= low) and (high is None or value <= high)
    if isinstance(value, int | float) and not inside:
        bounds = (
            f"at least {low:g}" if high is None else f"at most {high:g}" if low is None else f"in [{low:g}, {high:g}]"
        )
        raise UserError(f"{where}: {field.name} = {value!r} is out of range; it must be {bounds}.")
    return value


def is_rate(name: str) -> bool:
    """Whether an option of a method is a learning rate: it is called `lr`, or its name ends in `_lr`."""
    return name == "lr" or name.endswith("_lr")


def describe(cls: type) -> list[dict[str, str]]:
    """One row per field with its name, default, allowed values, the paper's value, grid and help, all as text."""
    rows = []
    for field in dataclasses.fields(cls):
        meta = field.metadata
        low, high = meta.get("low"), meta.get("high")
        allowed = " | ".join(meta["choices"]) if meta.get("choices") else ""
        if low is not None or high is not None:
            allowed = f"{'' if low is None else f'{low:g} <= '}{field.name}{'' if high is None else f' <= {high:g}'}"
        rows.append(
            {
                "name": field.name,
                "default": str(field.default),
                "allowed": allowed,
                "paper": meta.get("paper", ""),
                "grid": ", ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in meta.get("grid", ())),
                "help": meta.get("help", ""),
            }
        )
    return rows
