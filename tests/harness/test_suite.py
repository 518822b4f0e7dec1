"""Suites: TOML to cells, with every wrong key named."""

from pathlib import Path

import pytest

from fedprompt.harness.errors import UserError
from fedprompt.harness.suite import load_suite, parse_suite, suite_names
from fedprompt.methods import registry

SETTING = {"table": "Feature shift", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [1, 3]}
RAW = {"backbone": "micro-vit", "seeds": [0, 1], "methods": ["head-tune", "fedvpt"], "settings": [SETTING]}


def test_cells_are_the_product() -> None:
    cells = [cell for _, cell in parse_suite("x", RAW).cells()]
    assert [(c.partition, c.method, c.seed) for c in cells[:3]] == [
        ("domains:m=1", "head-tune", 0),
        ("domains:m=1", "head-tune", 1),
        ("domains:m=1", "fedvpt", 0),
    ]
    assert len({c.hash for c in cells}) == 8


def test_params_and_protocol_reach_their_cells() -> None:
    setting = {**SETTING, "protocol": {"rounds": 3}, "params": {"fedvpt": {"length": 4}}}
    suite = parse_suite(
        "x", {**RAW, "settings": [setting], "protocol": {"rounds": 9, "epochs": 1}, "params": {"fedvpt": {"lr": 0.5}}}
    )
    cell = next(cell for _, cell in suite.cells() if cell.method == "fedvpt")
    assert (cell.params["lr"], cell.params["length"], cell.protocol.rounds, cell.protocol.epochs) == (0.5, 4, 3, 1)


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_of_the_package_expands(name: str) -> None:
    suite = load_suite(name)
    cells = [cell for _, cell in suite.cells()]
    assert (
        len(cells) == len({cell.hash for cell in cells}) == len(suite.settings) * len(suite.methods) * len(suite.seeds)
    )


def test_embedded_has_the_promised_settings_and_all_methods() -> None:
    suite = load_suite("embedded")
    assert [s.label for s in suite.settings if s.dataset == "glyph-domains"] == ["m=1", "m=3", "m=6"]
    assert [s.label for s in suite.settings if s.dataset == "glyph-100"] == ["s=5", "s=20"]
    assert (
        set(registry().names())
        >= set(suite.methods)
        >= {"head-tune", "local-head", "head-tune-ft", "fedvpt", "fedvpt-d"}
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sedes": [0]}, ["'sedes'", "'seeds'"]),
        ({"settings": [{**SETTING, "dateset": "x"}]}, ["'dateset'", "'dataset'"]),
        ({"settings": [{k: v for k, v in SETTING.items() if k != "m"}]}, ["lacks 'm'"]),
        ({"seeds": []}, ["lacks 'seeds'"]),
        ({"methods": ["fedvtp"]}, ["'fedvtp'", "'fedvpt'"]),
        ({"params": {"fedvtp": {}}}, ["'fedvtp'", "'fedvpt'"]),
        ({"backbone": "micro-vti"}, ["'micro-vti'", "'micro-vit'"]),
    ],
)
def test_wrong_suites_are_named_in_one_line(change: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_suite("x", {**RAW, **change})
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_a_suite_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'backbone = "micro-vit"\nseeds = [0]\n'
        '[[settings]]\ntable = "T"\ndataset = "glyph-100"\npartition = "disjoint"\n'
    )
    assert [s.label for s in load_suite(str(path)).settings] == ["disjoint"]


def test_broken_toml_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("seeds = [")
    with pytest.raises(UserError, match="not valid TOML"):
        load_suite(str(path))


def test_params_for_all_reach_those_who_have_them() -> None:
    params = {"all": {"lr": 0.5, "length": 3}, "fedvpt": {"lr": 0.25}}
    cells = {cell.method: cell.params for _, cell in parse_suite("x", {**RAW, "params": params}).cells()}
    assert (cells["fedvpt"]["lr"], cells["fedvpt"]["length"]) == (0.25, 3)
    assert cells["head-tune"]["lr"] == 0.5
    assert "length" not in cells["head-tune"]


def test_a_parameter_that_no_method_has_is_named() -> None:
    with pytest.raises(UserError, match=r"'lenght'.*'length'"):
        parse_suite("x", {**RAW, "params": {"all": {"lenght": 3}}})
