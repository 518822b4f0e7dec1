from dataclasses import dataclass
from typing import Any

import pytest

from fedprompt.core.errors import UserError
from fedprompt.core.fields import build, describe, option


@dataclass(frozen=True)
class Options:
    count: int = option(3, "how many", low=1, high=10, paper="4")
    rate: float = option(0.1, "how fast", low=0, grid=(0.01, 0.5))
    flag: bool = option(False, "whether")
    kind: str = option("round", "which", choices=("round", "square"))
    limit: int | None = option(None, "at most", low=0)


def made(**values: Any) -> Options:
    return build(Options, values, "options")


@pytest.mark.parametrize(
    ("text", "value"),
    [("False", False), ("false", False), ("TRUE", True), (True, True), (False, False)],
)
def test_flags(text: str | bool, value: bool) -> None:
    assert made(flag=text).flag is value


@pytest.mark.parametrize(("text", "value"), [("4", 4), ("1e1", 10), (7, 7), (2.0, 2)])
def test_whole_numbers(text: Any, value: int) -> None:
    count = made(count=text).count
    assert (count, type(count)) == (value, int)


@pytest.mark.parametrize(("text", "value"), [("0.5", 0.5), ("1e-3", 0.001), (2, 2.0), ("0", 0.0)])
def test_numbers(text: Any, value: float) -> None:
    rate = made(rate=text).rate
    assert (rate, type(rate)) == (value, float)


@pytest.mark.parametrize(("text", "value"), [("none", None), (None, None), ("5", 5)])
def test_what_may_be_none(text: Any, value: int | None) -> None:
    assert made(limit=text).limit == value


def test_large_whole_numbers_are_kept() -> None:
    assert made(limit=2**60 + 1).limit == 2**60 + 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("flag", "yes", "true or false"),
        ("flag", 1, "true or false"),
        ("flag", "", "true or false"),
        ("count", "2.5", "a whole number"),
        ("count", "many", "a whole number"),
        ("count", True, "a whole number"),
        ("count", "nan", "a whole number"),
        ("count", "inf", "a whole number"),
        ("count", None, "a whole number"),
        ("rate", "fast", "a number"),
        ("rate", "nan", "a number"),
        ("rate", "inf", "a number"),
        ("rate", True, "a number"),
        ("rate", [1], "a number"),
        ("kind", 3, "text"),
        ("count", 0, r"must be in \[1, 10\]"),
        ("count", 11, r"must be in \[1, 10\]"),
        ("rate", -0.1, "must be at least 0"),
        ("limit", -1, "must be at least 0"),
        ("kind", "rund", "Did you mean 'round'"),
    ],
)
def test_bad_values_are_refused_in_one_line(field: str, value: object, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        made(**{field: value})
    assert field in str(caught.value)
    assert "options" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_key_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown key in options 'cuont'\. Did you mean 'count'"):
        made(cuont=3)


def test_bounds_are_inclusive() -> None:
    assert [made(count=n).count for n in (1, 10)] == [1, 10]


def test_description_of_every_field() -> None:
    rows = {row["name"]: row for row in describe(Options)}
    assert list(rows) == ["count", "rate", "flag", "kind", "limit"]
    assert rows["count"] == {
        "name": "count",
        "default": "3",
        "allowed": "1 <= count <= 10",
        "paper": "4",
        "grid": "",
        "help": "how many",
    }
    assert rows["rate"]["grid"] == "0.01, 0.5"
    assert rows["kind"]["allowed"] == "round | square"
