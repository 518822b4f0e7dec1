"""What is searched, what is written down, what the bench makes of it."""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.tuning_bench import KEY, a_suite, only_search, tune

from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.cli import main
from fedprompt.harness.core.errors import UserError
from fedprompt.harness.tuning.file import Tuned, read_tuned, write_tuned
from fedprompt.harness.tuning.search import load_tuned, searches, tuned_path, with_tuned


def entry(suite: Suite, **changes: Any) -> Tuned:
    search = only_search(suite)
    method, dataset, partition = search.key
    values = {
        "method": method,
        "dataset": dataset,
        "partition": partition,
        "params": {"lr": 0.3},
        "study": search.name,
        "value": 0.75,
        "default_value": 0.5,
        "finished": 3,
        "failed": 0,
        "seeds": (100, 101),
        "sampler": "grid",
        "code": "0.1.0",
    }
    return Tuned(**(values | changes))


# -- searches -------------------------------------------------------------------------------------------------------


def test_the_default_is_first_and_the_grid_follows() -> None:
    assert only_search(a_suite()).points == ({"lr": 0.1}, {"lr": 0.03}, {"lr": 0.3})


def test_a_default_off_the_grid_is_tried_too() -> None:
    suite = a_suite(params={"all": {"lr": 0.2}}, **tune(trials=9))
    assert only_search(suite).points == ({"lr": 0.2}, {"lr": 0.03}, {"lr": 0.1}, {"lr": 0.3})


def test_without_a_grid_of_the_suite_the_methods_own_counts() -> None:
    assert only_search(a_suite(**tune(grid={}))).grid == {"lr": (0.01, 0.05, 0.1)}


def test_an_empty_list_takes_a_parameter_out() -> None:
    suite = a_suite(methods=["pfedpg"], **tune(grid={"gen_lr": []}))
    assert list(only_search(suite).grid) == ["lr"]
    assert searches(a_suite(**tune(grid={"lr": []}))) == []


def test_a_parameter_that_no_method_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        UserError, match=r"unknown parameter in tune.grid of suite 'mini' 'gen_rl'. Did you mean 'gen_lr'"
    ):
        searches(a_suite(**tune(grid={"gen_rl": [1]})))


def test_a_value_that_a_parameter_cannot_take_is_refused() -> None:
    with pytest.raises(UserError, match="out of range"):
        searches(a_suite(**tune(grid={"lr": [-1]})))
    with pytest.raises(UserError, match="is not a list of values"):
        searches(a_suite(**tune(grid={"lr": 0.1})))


@pytest.mark.parametrize("method", ["fedvpt", "pfedpg", "pfedbayespt"])
def test_no_method_gets_more_than_the_budget(method: str) -> None:
    assert len(only_search(a_suite(methods=[method], **tune(grid={}, trials=2))).points) == 2
    assert only_search(a_suite(methods=[method]), trials=1).points == (only_search(a_suite(methods=[method])).default,)


def test_no_trials_are_refused() -> None:
    with pytest.raises(UserError, match="0 trials are too few"):
        searches(a_suite(), trials=0)


def test_a_cut_grid_uses_every_value_equally_often() -> None:
    suite = a_suite(methods=["pfedpg"], params={"all": {"lr": 0.01}}, **tune(grid={}, trials=8))  # 8 of 4 x 4
    points = only_search(suite).points
    assert points[0] == {"lr": 0.01, "gen_lr": 0.1}
    assert set(Counter(point["lr"] for point in points).values()) == {2}
    assert set(Counter(point["gen_lr"] for point in points).values()) == {2}


def test_a_cut_grid_keeps_far_values() -> None:
    suite = a_suite(params={"all": {"lr": 0.01}}, **tune(grid={"lr": [0.005, 0.015, 0.05]}, trials=2))
    assert only_search(suite).points == ({"lr": 0.01}, {"lr": 0.05})


def test_a_larger_budget_adds_points_and_takes_none_away() -> None:
    suite = a_suite(methods=["pfedpg"], **tune(grid={}))
    few, many = only_search(suite, trials=5), only_search(suite, trials=9)
    assert few.name == many.name
    assert all(point in many.points for point in few.points)


def test_trials_see_held_out_data_and_tuning_seeds_alone() -> None:
    cells = only_search(a_suite()).cells({"lr": 0.3})
    assert [cell.seed for cell in cells] == [100, 101]
    assert {(cell.phase, cell.protocol.val_fraction, cell.protocol.rounds) for cell in cells} == {("tune", 0.1, 2)}
    assert {cell.params["lr"] for cell in cells} == {0.3}


def test_a_trial_on_test_data_is_impossible() -> None:
    suite = a_suite()
    leaky = dataclasses.replace(suite, tune=dataclasses.replace(suite.tune, protocol={}))
    with pytest.raises(AssertionError, match="must not see test data"):
        only_search(leaky).cells({"lr": 0.3})


def test_variants_and_repeated_settings_share_one_search() -> None:
    setting = {"table": "T", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [2]}
    suite = a_suite(
        methods=["fedvpt", "long"],
        variants={"long": {"method": "fedvpt", "params": {"length": 4}}},
        settings=[setting, {**setting, "kind": "vsweep"}, {**setting, "m": [3]}],
    )
    assert [search.key for search in searches(suite)] == [KEY, ("fedvpt", "glyph-domains", "domains:m=3")]
    assert searches(suite)[0].base[0].params["length"] != 4


def test_the_name_is_readable_and_stable() -> None:
    name = only_search(a_suite()).name
    assert name == only_search(a_suite()).name
    assert name.startswith("mini/fedvpt/glyph-domains/domains:m=2/")


@pytest.mark.parametrize(
    "changes",
    [
        {"params": {"all": {"lr": 0.1, "length": 3}}},
        {"protocol": {"epochs": 2}},
        tune(seeds=[102]),
        tune(protocol={"val_fraction": 0.2}),
        tune(grid={"lr": [0.1, 0.3]}),
    ],
)
def test_a_changed_suite_has_another_study(changes: dict[str, Any]) -> None:
    assert only_search(a_suite(**(tune() | changes))).name != only_search(a_suite(**tune())).name


# -- the tuned file -------------------------------------------------------------------------------------------------


def test_the_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    entries = [
        entry(a_suite(), params={"lr": 1e-05, "single": True, "blocks": "0-3", "cut": None, "n": 4}),
        entry(a_suite(), method="fedpr", default_value=None),
    ]
    path = tmp_path / "tuned" / "mini.toml"
    write_tuned(path, entries)
    fedpr, fedvpt = read_tuned(path)
    assert fedpr == entries[1]
    assert fedvpt == dataclasses.replace(entries[0], params={**entries[0].params, "cut": "none"})  # TOML has no null
    assert load_tuned(path)[KEY]["lr"] == 1e-05


def test_the_file_does_not_depend_on_the_order_of_studies(tmp_path: Path) -> None:
    entries = [entry(a_suite()), entry(a_suite(), method="fedpr"), entry(a_suite(), partition="domains:m=3")]
    write_tuned(tmp_path / "a.toml", entries)
    write_tuned(tmp_path / "b.toml", entries[::-1])
    assert (tmp_path / "a.toml").read_bytes() == (tmp_path / "b.toml").read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[study]", "cannot be read"),
        ("date = 1", "unknown key in"),
        ("[[study]]\nmethod = 'fedvpt'", "lacks 'dataset'"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(UserError, match=message):
        load_tuned(tmp_path / "x.toml")


# -- what the bench makes of it -------------------------------------------------------------------------------------


def write(suite: Suite, out: Path, **changes: Any) -> None:
    write_tuned(tuned_path(suite, out), [entry(suite, **changes)])


def test_without_a_file_the_suite_is_as_it_was(tmp_path: Path) -> None:
    assert with_tuned(a_suite(), tmp_path) == a_suite()


def test_cells_use_tuned_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(a_suite(), tmp_path)
    cells = with_tuned(a_suite(), tmp_path).cells()
    assert [(cell.seed, cell.phase, cell.params["lr"]) for cell in cells] == [(0, "final", 0.3), (1, "final", 0.3)]
    assert capsys.readouterr().err == ""


def test_a_variant_keeps_what_it_fixes_itself(tmp_path: Path) -> None:
    variants = {
        name: {"method": "fedvpt", "params": params} for name, params in {"a": {"length": 4}, "b": {"lr": 1}}.items()
    }
    suite = a_suite(methods=["a", "b"], variants=variants)
    write(suite, tmp_path)
    rates = {planned.row.key: planned.cell.params["lr"] for planned in with_tuned(suite, tmp_path).planned()}
    assert rates == {"a": 0.3, "b": 1}


def test_values_tuned_for_another_state_of_the_suite_are_used_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(a_suite(), tmp_path)
    changed = a_suite(protocol={"epochs": 2})
    assert with_tuned(changed, tmp_path).cells()[0].params["lr"] == 0.3
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: 1 of 1 choices in")


def test_a_parameter_that_the_method_lacks_is_refused(tmp_path: Path) -> None:
    write(a_suite(), tmp_path, params={"lrr": 0.3})
    with pytest.raises(UserError, match="Did you mean 'lr'"):
        with_tuned(a_suite(), tmp_path)


def test_tuned_values_are_not_reported_on_tuning_seeds(tmp_path: Path) -> None:
    write(a_suite(), tmp_path)
    with pytest.raises(UserError, match="seed 101 is one that"):
        with_tuned(dataclasses.replace(a_suite(), seeds=(0, 101)), tmp_path)


def test_untuned_leaves_the_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[float] = []

    def note(cells: list[Any], *_: Any) -> list[Any]:
        ran.extend(cell.params["lr"] for cell in cells)
        return []

    write(a_suite(), tmp_path)
    monkeypatch.setattr("fedprompt.harness.cells.suite_file.load_suite", lambda *_: a_suite())
    monkeypatch.setattr("fedprompt.harness.cli._progress.run_and_record", note)
    monkeypatch.setattr("fedprompt.harness.report.write_report", lambda *_: None)
    assert main(["bench", "mini", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.startswith(f"2 of 2 cells use tuned values from {tmp_path}/tuned/mini.toml")
    assert main(["bench", "mini", "--out", str(tmp_path), "--untuned"]) == 0
    assert capsys.readouterr().err == ""
    assert ran == [0.3, 0.3, 0.1, 0.1]
