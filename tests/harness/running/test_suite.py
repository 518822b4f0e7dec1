"""Suites: TOML to cells, with every wrong key named."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fedprompt.core.errors import UserError
from fedprompt.harness.federation.policy import head_owner
from fedprompt.harness.running import suite as suite_module
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.suite import Suite
from fedprompt.harness.running.suite_file import FOLDER, load_suite, parse_suite
from fedprompt.methods import load_plugin, registry

SETTING = {"table": "Feature shift", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [1, 3]}
RAW = {"backbone": "micro-vit", "seeds": [0, 1], "methods": ["head-tune", "fedvpt"], "settings": [SETTING]}


def test_cells_are_the_product() -> None:
    cells = parse_suite("x", RAW).cells()
    assert [(c.partition, c.method, c.seed) for c in cells[:3]] == [
        ("domains:m=1", "head-tune", 0),
        ("domains:m=1", "head-tune", 1),
        ("domains:m=1", "fedvpt", 0),
    ]
    assert len({c.hash for c in cells}) == 8


def test_a_suite_states_a_recipe_for_all_its_rows() -> None:
    recipe = {"optimiser": "adamw", "schedule": "cosine", "warmup": 1, "decay_biases": False, "clip": 1, "rounds": 3}
    suite = parse_suite("x", {**RAW, "protocol": {**recipe, "head_input": "normalised"}})
    rules = {cell.protocol for cell in suite.cells()}
    assert {(r.optimiser, r.schedule, r.warmup, r.decay_biases, r.clip, r.head_input) for r in rules} == {
        ("adamw", "cosine", 1, False, 1, "normalised")
    }


def test_params_and_protocol_reach_their_cells() -> None:
    setting = {**SETTING, "protocol": {"rounds": 3}, "params": {"fedvpt": {"length": 4}}}
    suite = parse_suite(
        "x", {**RAW, "settings": [setting], "protocol": {"rounds": 9, "epochs": 1}, "params": {"fedvpt": {"lr": 0.5}}}
    )
    cell = next(cell for cell in suite.cells() if cell.method == "fedvpt")
    assert (cell.params["lr"], cell.params["length"], cell.protocol.rounds, cell.protocol.epochs) == (0.5, 4, 3, 1)


def test_a_suite_is_expanded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(*args: Any) -> Cell:
        nonlocal calls
        calls += 1
        return make_cell(*args)

    monkeypatch.setattr(suite_module, "make_cell", counted)
    suite = load_suite("embedded")
    for _ in range(3):
        cells = suite.cells()
        for entry in suite.planned():
            assert suite.cell(entry.setting, entry.row, entry.cell.seed, entry.policy) is entry.cell
    assert len({cell.hash for cell in cells}) == len(cells)
    trainings = [(s, row, head) for s in suite.settings for row in s.rows for head in set(map(head_owner, s.policies))]
    assert calls == len(trainings) * len(suite.seeds)  # `global` and `global_then_ft` are readings of one training


def test_a_changed_copy_is_expanded_anew() -> None:
    suite = parse_suite("x", RAW)
    assert len(suite.cells()) == 8
    assert {cell.seed for cell in dataclasses.replace(suite, seeds=(5,)).cells()} == {5}


def test_a_setting_may_name_its_column() -> None:
    [plain] = parse_suite("x", {**RAW, "settings": [{**SETTING, "m": [1], "label": "Glyphs"}]}).settings
    assert plain.label == "Glyphs, m=1"
    entry = {"table": "T", "dataset": "glyph-100", "partition": "disjoint:clients=5", "label": "Signs"}
    assert parse_suite("x", {**RAW, "settings": [entry]}).settings[0].label == "Signs"


VARIANT = {"method": "fedvpt", "title": "FedVPT, long", "params": {"length": 7}}


def test_a_variant_is_a_row_of_its_own() -> None:
    raw = {**RAW, "methods": ["fedvpt", "long"], "variants": {"long": VARIANT}, "params": {"all": {"lr": 0.5}}}
    planned = [entry for entry in parse_suite("x", raw).planned() if entry.row.key == "long"]
    assert {(e.row.title, e.cell.method, e.cell.params["length"], e.cell.params["lr"]) for e in planned} == {
        ("FedVPT, long", "fedvpt", 7, 0.5)
    }


def test_rows_with_one_title_are_told_apart_by_their_keys() -> None:
    variants = {"mine": {"method": "fedvpt", "title": "FedVPT"}, "longer": {"method": "fedvpt", "title": "Longer"}}
    suite = parse_suite("x", {**RAW, "methods": ["fedvpt", "mine", "longer"], "variants": variants})
    assert [row.title for row in suite.rows] == ["FedVPT (fedvpt)", "FedVPT (mine)", "Longer"]


def test_tuned_values_stand_between_the_suites_and_the_variants() -> None:
    raw = {**RAW, "methods": ["fedvpt", "long"], "variants": {"long": VARIANT}, "params": {"all": {"lr": 0.5}}}
    tuned = {("fedvpt", "glyph-domains", "domains:m=1", "local"): {"lr": 0.25, "length": 3}}
    suite = dataclasses.replace(parse_suite("x", raw), tuned=tuned)
    rates = {(e.setting.label, e.row.key): (e.cell.params["lr"], e.cell.params["length"]) for e in suite.planned()}
    assert rates[("m=1", "fedvpt")] == (0.25, 3)
    assert rates[("m=1", "long")] == (0.25, 7)
    assert rates[("m=3", "fedvpt")] == (0.5, 10)


# -- policies ---------------------------------------------------------------------------------------------------------


def policies_of(raw: dict[str, Any]) -> dict[tuple[str, str], Cell]:
    """Cells of the first setting and seed, by row and policy."""
    suite = parse_suite("x", {**raw, "seeds": [0], "settings": [{**SETTING, "m": [1]}]})
    return {(entry.row.key, entry.policy): entry.cell for entry in suite.planned()}


def test_without_policies_every_method_has_the_one_of_its_paper() -> None:
    cells = policies_of({**RAW, "methods": ["head-tune", "local-head", "head-tune-ft", "fedvpt"]})
    shown = {row: (policy, cell.protocol.head, cell.protocol.finetune_epochs) for (row, policy), cell in cells.items()}
    assert shown == {
        "head-tune": ("paper", "global", 5),  # the training that the row below is another reading of
        "local-head": ("paper", "local", 0),
        "head-tune-ft": ("paper", "global", 5),
        "fedvpt": ("paper", "local", 0),
    }


def test_two_readings_share_a_cell() -> None:
    cells = policies_of({**RAW, "policies": ["local", "global", "global_then_ft"], "protocol": {"epochs": 2}})
    assert cells["fedvpt", "global"] is cells["fedvpt", "global_then_ft"]
    assert cells["fedvpt", "global"].protocol.finetune_epochs == 2
    assert (cells["fedvpt", "local"].protocol.head, cells["fedvpt", "local"].protocol.finetune_epochs) == ("local", 0)


def test_the_global_policy_alone_is_read_once() -> None:
    assert policies_of({**RAW, "policies": ["global"]})["fedvpt", "global"].protocol.finetune_epochs == 0


def test_an_alias_is_shown_under_its_own_policy_only() -> None:
    cells = policies_of({**RAW, "methods": ["local-head", "fedvpt"], "policies": ["local", "global"]})
    assert set(cells) == {("local-head", "local"), ("fedvpt", "local"), ("fedvpt", "global")}
    assert cells["local-head", "local"].method == "head-tune"


def test_published_values_of_unseen_clients_stand_beside_fitted_heads() -> None:
    setting = {**SETTING, "m": [1], "kind": "unseen", "partition": "domains:m={m},unseen=half"}
    suite = parse_suite("x", {**RAW, "settings": [setting]})
    assert {entry.row.key: entry.reading for entry in suite.planned()} == {
        "head-tune": "global_then_ft",
        "fedvpt": "local",
    }


def test_tuned_values_belong_to_one_owner_of_the_head() -> None:
    tuned = {("fedvpt", "glyph-domains", "domains:m=1", "global"): {"lr": 0.25}}
    suite = dataclasses.replace(parse_suite("x", {**RAW, "policies": ["local", "global"]}), tuned=tuned)
    rates = {
        e.policy: e.cell.params["lr"] for e in suite.planned() if e.row.key == "fedvpt" and e.setting.label == "m=1"
    }
    assert rates == {"local": 0.01, "global": 0.25}


# -- ablations --------------------------------------------------------------------------------------------------------


# What tells each row from the full method: by its method, then by itself.
def test_only_keeps_rows_by_method_or_variant() -> None:
    raw = {**RAW, "methods": ["head-tune", "fedvpt", "long"], "variants": {"long": VARIANT}}
    suite = parse_suite("x", raw)
    assert [row.key for row in suite.only(["long"]).rows] == ["long"]
    assert [row.key for row in suite.only(["fedvpt"]).rows] == ["fedvpt", "long"]
    with pytest.raises(UserError, match=r"'fedvtp'.*'fedvpt'"):
        suite.only(["fedvtp"])


def test_a_selection_runs_the_same_cells_as_the_whole_suite() -> None:
    suite = load_suite("embedded")
    suite = dataclasses.replace(suite, tuned={key: {"lr": 0.7} for key in _keys(suite, "pfedbayespt")})
    chosen = {cell.hash for cell in suite.only(["pfedbayespt-g", "full-without-mixture"]).cells()}
    assert chosen
    assert chosen <= {cell.hash for cell in suite.cells()}


def _keys(suite: Suite, method: str) -> list[tuple[str, str, str, str]]:
    cells = [cell for cell in suite.cells() if cell.method == method]
    return [(cell.method, cell.dataset, cell.partition, cell.protocol.head) for cell in cells]


def test_cells_that_only_ablations_show_have_names_of_their_own() -> None:
    suite = load_suite("embedded")
    variants = suite.variants()
    by_row = {entry.row.key: variants.get(entry.cell.hash, "") for entry in suite.planned()}
    assert by_row["full-without-mixture"] == "full-without-mixture"
    assert by_row["pfedbayespt-g"] == by_row["fedvpt"] == ""
    tuned = dataclasses.replace(suite, tuned={key: {"lr": 0.7} for key in _keys(suite, "pfedbayespt")})
    assert "pfedbayespt-g-ablation" in tuned.variants().values()  # with the reference's rate, unlike the main table's


def test_rows_of_an_ablation_are_tuned_if_their_reference_is() -> None:
    suite = load_suite("embedded").only(["pfedbayespt", "fedvpt", "pfedbayespt-g"])
    assert suite.untuned() == []
    tuned = {key: {"lr": 0.7} for method in ("pfedbayespt", "fedvpt") for key in _keys(suite, method)}
    places = {(entry.setting.kind, entry.row.key) for entry in dataclasses.replace(suite, tuned=tuned).untuned()}
    assert places == {("heterogeneity", "pfedbayespt-g"), ("unseen", "pfedbayespt-g")}


def test_a_method_without_rates_is_not_called_untuned() -> None:
    suite = load_suite("embedded-clip").only(["zs-clip", "coop", "promptfl"])
    tuned = {key: {"lr": 0.7} for key in _keys(suite, "coop")}
    assert {entry.row.key for entry in dataclasses.replace(suite, tuned=tuned).untuned()} == {"promptfl", "promptfl-ft"}


def test_the_command_that_tunes_names_the_suite_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text((FOLDER / "smoke.toml").read_text())
    own = load_suite(str(tmp_path / "mine.toml"))
    assert own.command("tune", ["fedvpt", "sgpt"]) == f"fedprompt tune {tmp_path}/mine.toml --methods fedvpt,sgpt"
    assert parse_suite("x", RAW).command("bench") == "fedprompt bench x"


def test_a_command_names_the_files_of_plugins(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text('from fedprompt.methods.fedvpt import FedVPT\n\nclass Mine(FedVPT):\n    name = "mine"\n')
    registry.cache_clear()
    try:
        load_plugin(file)
        suite = parse_suite("x", {**RAW, "methods": ["fedvpt", "mine"]})
        assert suite.command("bench") == f"fedprompt bench x --plugin {file}"
    finally:
        registry.cache_clear()


def test_tuning_holds_data_out_and_leaves_the_sweep() -> None:
    assert parse_suite("x", RAW).tune.protocol == {"val_fraction": 0.1, "last": 1, "sweep": False}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sedes": [0]}, ["'sedes'", "'seeds'"]),
        ({"settings": [{**SETTING, "dateset": "x"}]}, ["'dateset'", "'dataset'"]),
        ({"settings": [{k: v for k, v in SETTING.items() if k != "m"}]}, ["lacks 'm'"]),
        ({"seeds": []}, ["seeds = []"]),
        ({"methods": ["fedvtp"]}, ["'fedvtp'", "'fedvpt'"]),
        ({"params": {"fedvtp": {}}}, ["'fedvtp'", "'fedvpt'"]),
        ({"backbone": "micro-vti"}, ["'micro-vti'", "'micro-vit'"]),
        ({"backbone": "vit_base_patch16_224.orig_in12k"}, ["orig_in12k", "vit_base_patch16_224.orig_in21k"]),
        ({"settings": [{**SETTING, "kind": "unsen"}]}, ["'unsen'", "'unseen'"]),
        ({"settings": [{**SETTING, "kind": "novel"}]}, ["'novel'", "novel=half", "domains:m=1"]),
        ({"settings": [{**SETTING, "kind": "target"}]}, ["'target'", "target=DOMAIN"]),
        ({"settings": [{**SETTING, "reference": "fedvp"}]}, ["'fedvp'", "'fedvpt'"]),
        ({"variants": {"long": {"title": "x"}}}, ["variants.long", "lacks 'method'"]),
        ({"variants": {"fedvpt": VARIANT}}, ["variants.fedvpt", "name of a method"]),
        ({"variants": {"long": {**VARIANT, "parms": {}}}}, ["'parms'", "'params'"]),
        ({"tune": {"trails": 3}}, ["'trails'", "'trials'"]),
        ({"tune": {"seeds": [1, 100]}}, ["seed 1", "tuning"]),
        ({"tune": {"seeds": [100], "finals": [1]}}, ["seed 1", "tuning"]),
        ({"tune": {"seeds": [100], "finals": [100]}}, ["seed 100", "tune.finals"]),
        ({"tune": {"protocol": {"val_fraction": 0}}}, ["val_fraction = 0", "test data"]),
        ({"policies": ["locl"]}, ["'locl'", "'local'"]),
        ({"policies": []}, ["policies = []", "global_then_ft"]),
        ({"policies": ["global"], "methods": ["local-head"]}, ["local-head", "'local'"]),
        ({"params": {"local-head": {}}}, ["params.local-head", "params.head-tune"]),
        ({"settings": [{**SETTING, "policies": ["globl"]}]}, ["'globl'", "'global'"]),
        ({"include": ["smoke"]}, ["'backbone'", "includes others"]),
    ],
)
def test_wrong_suites_are_named_in_one_line(change: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_suite("x", {**RAW, **change})
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_reports_are_about_accuracy_unless_the_suite_says_more() -> None:
    assert parse_suite("x", RAW).measures == ("accuracy",)
    assert parse_suite("x", {**RAW, "report": {"measures": ["nll", "ece"]}}).measures == ("nll", "ece")


def test_what_is_reported_is_no_part_of_a_cell() -> None:
    more = {**RAW, "report": {"measures": ["nll"]}}
    assert [cell.hash for cell in parse_suite("x", more).cells()] == [
        cell.hash for cell in parse_suite("x", RAW).cells()
    ]


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
    with pytest.raises(UserError, match="is not TOML"):
        load_suite(str(path))


def test_params_for_all_reach_those_who_have_them() -> None:
    params = {"all": {"lr": 0.5, "length": 3}, "fedvpt": {"lr": 0.25}}
    cells = {cell.method: cell.params for cell in parse_suite("x", {**RAW, "params": params}).cells()}
    assert (cells["fedvpt"]["lr"], cells["fedvpt"]["length"]) == (0.25, 3)
    assert cells["head-tune"]["lr"] == 0.5
    assert "length" not in cells["head-tune"]


def test_a_parameter_that_no_method_has_is_named() -> None:
    with pytest.raises(UserError, match=r"'lenght'.*'length'"):
        parse_suite("x", {**RAW, "params": {"all": {"lenght": 3}}})


# -- methods without a head -------------------------------------------------------------------------------------------

TEXT = {**RAW, "backbone": "micro-clip", "methods": ["zs-clip", "promptfl", "promptfl-ft", "fedvpt", "head-tune"]}


def test_all_means_every_method_that_the_backbone_can_serve() -> None:
    methods = {row.key for row in parse_suite("x", {**RAW, "methods": "all"}).rows}
    assert "fedvpt" in methods
    assert "promptfl" not in methods
    assert {"fedvpt", "promptfl"} <= {row.key for row in parse_suite("x", {**TEXT, "methods": "all"}).rows}


def test_both_families_share_a_table_each_under_its_own_policy() -> None:
    entries = [
        entry for entry in parse_suite("x", TEXT).planned() if entry.cell.seed == 0 and entry.setting.label == "m=1"
    ]
    assert [(entry.row.key, entry.reading) for entry in entries] == [
        ("zs-clip", "none"),
        ("promptfl", "none"),
        ("promptfl-ft", "none_then_ft"),
        ("fedvpt", "local"),
        ("head-tune", "global"),
    ]


def test_policies_of_the_head_leave_out_methods_without_one() -> None:
    raw = {**TEXT, "methods": ["promptfl", "fedvpt"], "policies": ["local", "none"]}
    entries = {(entry.row.key, entry.policy) for entry in parse_suite("x", raw).planned()}
    assert entries == {("promptfl", "none"), ("fedvpt", "local")}
    with pytest.raises(UserError, match="promptfl has the policies none, none_then_ft, and policies lacks all of them"):
        parse_suite("x", {**raw, "policies": ["local"]})


def test_a_suite_or_a_setting_names_the_control() -> None:
    suite = parse_suite("x", {**TEXT, "control": "zs-clip", "settings": [SETTING, {**SETTING, "control": "fedvpt"}]})
    assert [setting.control for setting in suite.settings] == ["zs-clip", "zs-clip", "fedvpt", "fedvpt"]
    with pytest.raises(UserError, match=r"unknown control in suite 'x' 'zs-klip'\. Did you mean 'zs-clip'"):
        parse_suite("x", {**TEXT, "control": "zs-klip"})


@pytest.mark.parametrize(
    ("method", "policy", "message"),
    [
        ("promptfl", "local", "method 'promptfl' has no head; its policies are none, none_then_ft, not 'local'"),
        ("fedvpt", "none", "method 'fedvpt' has a head; its policies are local, global, global_then_ft, not 'none'"),
    ],
)
def test_a_policy_that_a_method_cannot_have_is_refused(method: str, policy: str, message: str) -> None:
    backbone = parse_suite("x", TEXT).backbone
    with pytest.raises(UserError, match=message):
        make_cell(method, "glyph-domains", "domains:m=1", backbone, policy=policy)


def test_a_backbone_without_text_is_refused_before_anything_is_built() -> None:
    with pytest.raises(UserError, match="method 'promptfl' needs text, which backbone 'micro-vit' does not offer"):
        make_cell("promptfl", "glyph-domains", "domains:m=1", parse_suite("x", RAW).backbone)
