"""Random input: what is not understood is refused in one line, and what is damaged never passes for whole."""

import copy
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.run_folders import a_cell

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.core.errors import UserError
from fedprompt.datasets import make_partition, parse_partition
from fedprompt.harness.cli._options import split_settings
from fedprompt.harness.conformance.toy import toy_dataset
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.rounds import FederationState, RoundLog
from fedprompt.harness.measuring.evaluation import Record
from fedprompt.harness.running.cell import make_cell
from fedprompt.harness.running.journal import CHECKPOINT, Journal
from fedprompt.harness.running.suite_file import load_suite

SUITE: dict[str, Any] = {
    "title": "A suite",
    "methods": ["fedvpt", "more-tokens"],
    "seeds": [0, 1],
    "policies": ["local", "global"],
    "backbone": "micro-vit",
    "weights": "random",
    "image_size": 32,
    "protocol": {"rounds": 2, "epochs": 1},
    "params": {"fedvpt": {"lr": 0.1}, "all": {"head_lr": 0.1}},
    "variants": {"more-tokens": {"method": "fedvpt", "title": "More", "params": {"length": 20}}},
    "tune": {"seeds": [100], "trials": 3, "grid": {"lr": [0.1, 0.3]}, "protocol": {"val_fraction": 0.5}},
    "settings": [{"table": "T", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [1, 2]}],
}
SCALARS = st.one_of(
    st.sampled_from(
        ["", "..", "all", "fedvpt", "domains:m={m}", "{", "{}", "local", "global", "micro-vit", "01", 0, -1]
    ),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=12),
    st.dates(),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abm-", max_size=5), inner, max_size=3)
)
EDIT = st.tuples(st.lists(st.integers(0, 20), min_size=1, max_size=4), VALUES, st.booleans())


def edit(suite: Any, path: list[int], value: Any, remove: bool) -> None:
    """Replace or remove what is found by following ``path``, or add what is not there."""
    for depth, step in enumerate(path):
        keys = list(suite) if isinstance(suite, dict) else range(len(suite))
        if not len(keys):
            return
        key = keys[step % len(keys)]
        if depth == len(path) - 1 or not isinstance(suite[key], dict | list):
            if remove:
                del suite[key]
            else:
                suite[key] = value
            return
        suite = suite[key]


CASES: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def count_cases(request: pytest.FixtureRequest, figures: list[str]) -> Iterator[None]:
    CASES.clear()
    yield
    name = request.node.name.removeprefix("test_").replace("_", " ")
    answers = ", ".join(f"{number} {answer}" for answer, number in sorted(CASES.items()))
    figures.append(f"{CASES.total()} {name}: {answers}")


def attempt(action: Callable[[], object]) -> None:
    """``action`` gets through or is refused in one line; any other error is a failure."""
    refusal = ""
    try:
        action()
    except UserError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert len(refusal) < 2000
    CASES["refused in one line" if refusal else "accepted"] += 1


@given(st.lists(EDIT, min_size=1, max_size=3))
def test_suites(edits: list[tuple[list[int], Any, bool]]) -> None:
    suite = copy.deepcopy(SUITE)
    for path, value, remove in edits:
        edit(suite, path, value, remove)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mine.toml"
        file.write_bytes(tomli_w.dumps(suite).encode())
        attempt(lambda: load_suite(str(file)).cells())


@given(st.binary(max_size=200))
def test_suites_of_any_bytes(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mine.toml"
        file.write_bytes(content)
        attempt(lambda: load_suite(str(file)))


NUMBERS = st.sampled_from(
    ["0", "1", "2", "3", "-1", "0.5", "1e12", "1e-9", "nan", "inf", "", "x", "999999999999", "half"]
)
OPTIONS = {  # of each kind, with values that toy data allow
    "domains": {"m": ["1"], "clients": ["1", "2", "4"]},
    "classes": {"s": ["1", "2", "4"], "clients": ["2", "3", "4"]},
    "dirichlet": {"alpha": ["0.5", "1", "100"], "clients": ["1", "2", "3"], "min_size": ["1", "2"]},
    "domain-dirichlet": {"alpha": ["1", "100"], "clients": ["1", "2"], "min_size": ["1"]},
    "disjoint": {"clients": ["1", "2", "4"], "rule": ["public"]},
    "client-lt": {"alpha": ["0.5", "100"], "clients": ["2", "4"], "tail": ["0.3"], "spec": ["0", "1"], "leak": ["0"]},
}
ANY_KIND = {"shots": ["1", "3"], "test_shots": ["1", "2"], "unseen": ["none", "half"], "imbalance": ["0.5", "1"]}


@st.composite
def partitions(draw: st.DrawFn) -> str:
    """Mostly what is allowed, with one wrong name or value at times."""
    kind = draw(st.sampled_from([*OPTIONS]))
    given_options = {name: draw(st.sampled_from(values)) for name, values in OPTIONS[kind].items()}
    for name in draw(st.lists(st.sampled_from([*ANY_KIND]), max_size=2)):
        given_options[name] = draw(st.sampled_from(ANY_KIND[name]))
    if draw(st.booleans()):
        given_options[draw(st.sampled_from([*given_options, "q", "m", ""]))] = draw(NUMBERS)
    return f"{kind}:{','.join(f'{name}={value}' for name, value in given_options.items())}"


@given(partitions() | st.text(max_size=30), st.integers(0, 3))
def test_partitions(text: str, seed: int) -> None:
    def deal() -> None:
        partition = make_partition(parse_partition(text), toy_dataset(), seed)
        rows = [row for part in partition.train for row in part]
        assert len(rows) == len(set(rows))
        assert min(map(len, partition.train)) > 0

    attempt(deal)


METHODS = st.sampled_from(["fedvpt", "sgpt", "pfedbayespt", "pfedpg"])
WORDS = ["true", "False", "local", "global", "paper", "None", "1,2"]
ALLOWED = st.sampled_from(["rounds=3", "epochs=0", "lr=0.1", "head_lr=1e-3", "stack=2", "participation=0.5", "last=1"])
PERHAPS = st.builds(
    lambda key, value: f"{key}={value}",
    st.sampled_from([*Protocol.__dataclass_fields__, "lr", "length", "init", "head_lr", "nonsense", ""]),
    NUMBERS | st.sampled_from(WORDS) | st.text(max_size=8),
)


@given(METHODS, st.lists(ALLOWED, max_size=3), st.lists(PERHAPS | st.text(max_size=10), max_size=2))
def test_values_of_set(method: str, allowed: list[str], others: list[str]) -> None:
    def make() -> None:
        params, protocol = split_settings(method, [*allowed, *others])
        make_cell(method, "glyph-domains", "domains:m=1", BackboneSpec("micro-vit", "random", 32), 0, params, protocol)

    attempt(make)


@cache
def _a_journal() -> tuple[dict[str, bytes], list[FederationState]]:
    """The files of a run of four rounds, and the state after each."""
    with tempfile.TemporaryDirectory() as name:
        folder, states = Path(name), []
        journal = Journal(folder, a_cell(), "0123456789abcdef", "data")
        for round_, cohort in enumerate([tuple(range(30)), (1, 2), (3, 4), (5, 6)], start=1):
            heads = {client: {"head": torch.full((8,), round_ + client / 64)} for client in cohort}
            before = states[-1].personal if states else {}
            states.append(FederationState(round_, {"prompt": torch.full((4,), float(round_))}, before | heads))
            log = RoundLog(round_, cohort, 0.5, 1, 1, 4, 4, {"kl": 0.1})
            journal.append(states[-1], log, [Record(round_, client, "photo", 1, 2, True) for client in cohort])
        return {path.name: path.read_bytes() for path in folder.iterdir()}, states


DAMAGE = st.one_of(
    st.tuples(st.just("flip"), st.floats(0, 1), st.integers(1, 255)),
    st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
    st.tuples(st.just("cut"), st.floats(0.6, 1), st.just(0)),
    st.tuples(st.just("insert"), st.just(1.0), st.binary(min_size=1, max_size=50)),
    st.tuples(st.just("insert"), st.floats(0, 1), st.binary(min_size=1, max_size=50)),
    st.tuples(st.just("remove"), st.floats(0, 1), st.integers(1, 200)),
    st.tuples(st.just("zero"), st.floats(0, 1), st.integers(1, 5000)),
)


def damage(content: bytes, kind: str, where: float, what: Any) -> bytes:
    place = int(where * max(0, len(content) - 1))
    if not content:
        return content
    if kind == "flip":
        return content[:place] + bytes([content[place] ^ what]) + content[place + 1 :]
    if kind == "cut":
        return content[:place]
    if kind == "insert":
        return content[:place] + what + content[place:]
    length = len(content[place : place + what])
    return content[:place] + (bytes(length) if kind == "zero" else b"") + content[place + length :]


@given(st.sampled_from([CHECKPOINT, CHECKPOINT, "records.csv", "rounds.csv"]), st.lists(DAMAGE, min_size=1, max_size=2))
def test_bytes_of_checkpoints(name: str, damages: list[tuple[str, float, Any]]) -> None:
    files, states = _a_journal()
    content = files[name]
    for kind, where, what in damages:
        content = damage(content, kind, where, what)
    with tempfile.TemporaryDirectory() as folder:
        for file, original in files.items():
            (Path(folder) / file).write_bytes(content if file == name else original)

        def resume() -> None:
            journal = Journal(Path(folder), a_cell(), "0123456789abcdef", "data")
            assert journal.state is not None
            expected = states[journal.state.round - 1]
            assert torch.equal(journal.state.server["prompt"], expected.server["prompt"])
            assert journal.state.personal.keys() == expected.personal.keys()
            for client, own in expected.personal.items():
                assert torch.equal(journal.state.personal[client]["head"], own["head"])
            assert files["records.csv"].startswith((Path(folder) / "records.csv").read_bytes())
            assert journal.records.read()["round"].max() == journal.state.round

        attempt(resume)
