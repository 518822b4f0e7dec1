"""Whatever stands in a suite's file, the answer is a suite or one line."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprompt.core.errors import UserError
from fedprompt.harness.running.suite_file import load_suite, parse_suite
from fedprompt.harness.tuning.search import searches

SUITE: dict[str, Any] = {
    "title": "Tiny",
    "methods": ["fedvpt", "wide"],
    "seeds": [0, 1],
    "policies": ["local"],
    "backbone": "micro-vit",
    "weights": "random",
    "image_size": 32,
    "protocol": {"rounds": 2, "participation": 0.5, "sweep": False},
    "params": {"all": {"lr": 0.1}, "fedvpt": {"length": 2}},
    "variants": {"wide": {"method": "fedvpt", "title": "Wide", "params": {"length": 20}}},
    "tune": {"seeds": [100], "trials": 2, "protocol": {"val_fraction": 0.2}, "grid": {"lr": [0.1, 0.2]}},
    "report": {"measures": ["accuracy", "nll"]},
    "settings": [
        {
            "table": "T",
            "dataset": "glyph-domains",
            "partition": "domains:m={m}",
            "m": [1, 2],
            "kind": "heterogeneity",
            "published": "DomainNet",
            "reference": "fedvpt",
            "params": {"fedvpt": {"lr": 0.2}},
            "protocol": {"epochs": 1},
        }
    ],
}
SCALARS = st.one_of(
    st.sampled_from(
        ["", "all", "fedvpt", "head-tune-ft", "none", "{m}", "{", "{m.x}", "{}", "{kind}", "..", "\0", "01"]
    ),
    st.text(max_size=5),
    st.integers(),
    st.sampled_from([10**400, -1, 0, 1, 2**63]),
    st.floats(),
    st.booleans(),
    st.dates(),
)
NAMES = st.text(max_size=4) | st.sampled_from(["all", "fedvpt", "lr", "seeds", "rounds", "m", "method", "table"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value inside."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, entry in entries for found in [(*path, key), *places(entry, (*path, key))]]


@settings(max_examples=300)
@given(changes=st.lists(st.tuples(st.sampled_from(places(SUITE)), VALUES), min_size=1, max_size=2), extra=VALUES)
def test_no_suite_gives_a_traceback(changes: list[tuple[tuple[Any, ...], Any]], extra: Any) -> None:
    raw = copy.deepcopy(SUITE)
    for path, value in changes:
        holder: Any = raw
        for key in path[:-1]:
            holder = holder[key] if isinstance(holder, list | dict) and len(holder) and _has(holder, key) else {}
        if isinstance(holder, dict) or (isinstance(holder, list) and _has(holder, path[-1])):
            holder[path[-1]] = value
    if isinstance(extra, dict):
        raw |= extra
    try:
        suite = parse_suite("fuzzed", raw)
        suite.cells()
        searches(suite)
    except UserError:
        pass


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else isinstance(key, int) and key < len(holder)


def test_the_suite_that_is_changed_is_right() -> None:
    assert len(parse_suite("tiny", SUITE).cells()) == 8


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": [0, 0]}, "seeds = [0, 0] is not a list of different whole numbers"),
        ({"seeds": "01"}, "seeds = '01' is not"),
        ({"seeds": [True]}, "seeds = [True] is not"),
        ({"image_size": 0}, "image_size = 0 is not a whole number above 0"),
        ({"settings": {}}, r"settings = {} is not a list of tables"),
        ({"params": {"fedvpt": 3}}, "one table of single values per method"),
        ({"methods": "fedvpt"}, '"all" or a list'),
        ({"report": {"measures": []}}, "measures = [] is not a list of different texts"),
        (
            {"report": {"measures": ["nll", "ecce"]}},
            "unknown measure in report of suite 'tiny' 'ecce'. Did you",
        ),
        ({"report": {"measure": ["nll"]}}, "Did you mean 'measures'"),
        ({"tune": {"trials": "many"}}, "trials = 'many' is not"),
        ({"tune": {"tie": 2}}, "tie = 2 is not a number from 0 to 1"),
        ({"tune": {"start": {"locl": {}}}}, "unknown key in tune.start of suite 'tiny' 'locl'. Did you mean 'local'"),
        ({"tune": {"start": {"local": {"hed_lr": 0.1}}}}, "Did you mean 'head_lr'"),
        ({"tune": {"start": {"local": 0.1}}}, "is not a table with one table of single values per owner of the head"),
    ],
)
def test_wrong_values_are_named_with_what_is_allowed(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_suite("tiny", {**SUITE, **changes})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"partition": "domains:m={m"}, "brace"),
        ({"partition": "domains:m={}"}, "names in its braces"),
        ({"partition": "domains:m={table}"}, "names in its braces"),
        ({"m": []}, "make 0 settings"),
        ({"m": list(range(1, 2000))}, "make 1999 settings"),
        ({"params": {"fedvptt": {"lr": 1}}}, "'fedvptt'"),
    ],
)
def test_wrong_settings_are_named(change: dict[str, Any], words: str) -> None:
    raw = copy.deepcopy(SUITE)
    raw["settings"][0] |= change
    with pytest.raises(UserError) as caught:
        parse_suite("tiny", raw)
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["..toml", "...toml", "-x.toml", "a\tb.toml"])
def test_a_suites_name_cannot_lead_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("title = 'x'")
    with pytest.raises(UserError, match="must begin with a letter or a digit"):
        load_suite(str(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = " + "[" * 100_000, "is nested more than"),
        ("x = ", "it is not TOML"),
        ('include = ["a.toml"]', "'a' includes itself"),
        ('include = ["b.toml"]', "'a' includes itself, by way of b.toml"),
    ],
)
def test_files_that_cannot_be_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.toml").write_text(text)
    Path("b.toml").write_text('include = ["a.toml"]')
    with pytest.raises(UserError, match=words):
        load_suite("a.toml")


def test_a_name_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no suite file"):
        load_suite("x" * 5000 + ".toml")
