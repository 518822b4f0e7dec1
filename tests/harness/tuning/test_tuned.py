"""The tuned file, and what the bench makes of it."""

import dataclasses
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.tuning_bench import KEY, a_suite, only_search, tune

from fedprompt.core.errors import UserError
from fedprompt.harness.cli import main
from fedprompt.harness.running.suite import Suite
from fedprompt.harness.running.suite_file import load_suite
from fedprompt.harness.tuning import tuned as tuned_module
from fedprompt.harness.tuning.search import KEY_NAMES, Result, searches
from fedprompt.harness.tuning.tuned import (
    Tuned,
    load_tuned,
    read_tuned,
    shipped_folder,
    tuned_choices,
    tuned_entry,
    tuned_path,
    tuning_notes,
    undecided,
    with_tuned,
    write_tuned,
)

RESULTS = Path(__file__).parents[3] / "results"


def entry(suite: Suite, **changes: Any) -> Tuned:
    search = only_search(suite)
    values = {
        **dict(zip(KEY_NAMES, search.key, strict=True)),
        "params": {"lr": 0.3},
        "study": search.name,
        "setup": search.setup,
        "value": 0.75,
        "default_value": 0.5,
        "trials": 4,
        "finished": 3,
        "failed": 1,
        "seeds": (100, 101),
        "at_edge": ("lr",),
        "untried": (),
        "repeat": (
            {"seed": 100, "params": {"lr": 0.3}, "loss": 0.0},
            {"seed": 101, "params": {"lr": 0.1}, "loss": 0.02},
        ),
        "sampler": "pattern",
        "code": search.base[0].code,
    }
    return Tuned(**(values | changes))


def test_a_lone_choice_is_weighed_on_all_seeds_that_it_shares_with_the_best() -> None:
    search = only_search(a_suite(**tune(seeds=[100, 101], finals=[102])))
    lucky = Result({"lr": 0.3}, 0.8, by_seed=(0.8, 0.8), finals=(0.2,))
    steady = Result({"lr": 0.1}, 0.7, by_seed=(0.7, 0.7), finals=(0.7,))
    chosen = tuned_entry(search, [steady, lucky])
    assert chosen is not None
    assert chosen.params == steady.point
    assert [(choice["params"], choice["loss"]) for choice in chosen.repeat] == [(lucky.point, 0.1)] * 2


def test_a_users_folder_goes_by_its_name_wherever_it_is_kept(tmp_path: Path) -> None:
    def a_suite_of(dataset: str) -> Suite:
        return a_suite(settings=[{"table": "T", "dataset": dataset, "partition": "domains:m=2"}])

    suite, moved = a_suite_of("folder:/home/me/pets"), a_suite_of("folder:/data/pets")
    search = only_search(suite)
    chosen = tuned_entry(search, [Result({"lr": 0.3}, 0.7, by_seed=(0.6, 0.8))])
    assert chosen is not None
    write_tuned(tuned_path(suite, tmp_path), [chosen])
    text = tuned_path(suite, tmp_path).read_text()
    assert "folder:pets" in text
    assert "/home" not in text
    [(found, _)] = tuned_choices(moved, tmp_path)
    assert (found.dataset, found.setup) == ("folder:/data/pets", only_search(moved).setup)


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


def test_the_file_reads_well(tmp_path: Path) -> None:
    write_tuned(tmp_path / "a.toml", [entry(a_suite(), study="mini/fedvpt", setup="123", head="local", code="0.1.0")])
    assert (tmp_path / "a.toml").read_text().splitlines()[1:] == [
        "",
        "format = 2",
        "",
        "[[study]]",
        'method = "fedvpt"',
        'dataset = "glyph-domains"',
        'partition = "domains:m=2"',
        'head = "local"',
        'study = "mini/fedvpt"',
        'setup = "123"',
        "value = 0.75",
        "default_value = 0.5",
        "trials = 4",
        "finished = 3",
        "failed = 1",
        "seeds = [",
        "    100,",
        "    101,",
        "]",
        "at_edge = [",
        '    "lr",',
        "]",
        "untried = []",
        "repeat = [",
        "    { seed = 100, params = { lr = 0.3 }, loss = 0.0 },",
        "    { seed = 101, params = { lr = 0.1 }, loss = 0.02 },",
        "]",
        'sampler = "pattern"',
        'code = "0.1.0"',
        "",
        "[study.params]",
        "lr = 0.3",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[study]", "cannot be read"),
        ("format = 2\ndate = 1", "unknown key in"),
        ("format = 2\n[[study]]\nmethod = 'fedvpt'", "lacks 'dataset'"),
        ("format = 2\nstudy = 3", "study = 3 is not a list of tables"),
        ("format = 2\n[[study]]\nmethod = ['fedvpt']", "is not text"),
        ("format = 2\n[[study]]\nparams = 1", "params = 1 is not a table"),
        ("format = 2\n[[study]]\nrepeat = [{}]", "with seed, params and loss"),
        ("x = " + "[" * 100_000, "cannot be read"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(UserError, match=message):
        load_tuned(tmp_path / "x.toml")


# -- what the bench makes of it -------------------------------------------------------------------------------------


def write(suite: Suite, out: Path, **changes: Any) -> None:
    write_tuned(tuned_path(suite, out), [entry(suite, **changes)])


@pytest.mark.parametrize(
    ("changes", "is_decided"),
    [
        ({}, True),
        ({"study": "other/fedvpt", "code": "older"}, True),
        ({"failed": 1}, False),
        ({"trials": 2}, False),
        ({"sampler": "tpe"}, False),
        ({"setup": "x"}, False),
    ],
)
def test_a_study_is_decided_if_the_same_search_ended_without_failures(
    tmp_path: Path, changes: dict[str, Any], is_decided: bool
) -> None:
    suite = a_suite()
    write(suite, tmp_path, **{"failed": 0, **changes})
    assert (undecided(searches(suite), suite, tmp_path) == []) == is_decided


def test_without_a_file_the_suite_is_as_it_was(tmp_path: Path) -> None:
    assert with_tuned(a_suite(), tmp_path) == a_suite()


def test_cells_use_tuned_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(a_suite(), tmp_path)
    cells = with_tuned(a_suite(), tmp_path).cells()
    assert [(cell.seed, cell.phase, cell.params["lr"]) for cell in cells] == [(0, "final", 0.3), (1, "final", 0.3)]
    assert capsys.readouterr().err.startswith("all cells use tuned values from")


def test_values_serve_suites_that_search_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `paper` and the suites that it includes do."""
    setting = {"table": "T", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [2, 3]}
    part, whole = a_suite(), dataclasses.replace(a_suite(settings=[setting]), name="whole")
    write_tuned(tuned_path(whole, tmp_path), [entry(part)])
    assert {cell.params["lr"] for cell in with_tuned(part, tmp_path).cells()} == {0.3}
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"all cells use tuned values from {tmp_path}/tuned/whole.toml")
    tuned_path(whole, tmp_path).rename(tuned_path(part, tmp_path))
    assert [cell.params["lr"] for cell in with_tuned(whole, tmp_path).cells()] == [0.3, 0.3, 0.1, 0.1]
    assert "2 of 4 cells use tuned values from" in capsys.readouterr().err
    assert with_tuned(dataclasses.replace(a_suite(protocol={"epochs": 2}), name="x"), tmp_path).tuned == {}


def test_shared_values_serve_every_partition_of_the_data_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = {"table": "T", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [2, 3]}
    suite = a_suite(settings=[setting], tune={"shared": True})
    write(suite, tmp_path)
    assert [cell.params["lr"] for cell in with_tuned(suite, tmp_path).cells()] == [0.3] * 4
    assert capsys.readouterr().err.startswith("all cells use tuned values from")
    assert len(tuned_choices(suite, tmp_path)) == 1


def test_the_suites_own_values_come_first(tmp_path: Path) -> None:
    write_tuned(tmp_path / "tuned" / "a.toml", [entry(a_suite(), params={"lr": 0.03})])
    write(a_suite(), tmp_path)
    assert with_tuned(a_suite(), tmp_path).cells()[0].params["lr"] == 0.3


def test_paper_serves_the_suites_that_it_includes() -> None:
    whole = {search.key: search.setup for search in searches(load_suite("paper"))}
    for name in ("paper-domainnet", "paper-cifar100", "paper-unseen", "paper-ablation", "paper-vsweep"):
        parts = {search.key: search.setup for search in searches(load_suite(name))}
        assert parts
        assert parts.items() <= whole.items()


def test_a_file_of_another_format_is_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(a_suite(), tmp_path)
    path = tuned_path(a_suite(), tmp_path)
    path.write_text(path.read_text().replace("format = 2", ""))
    assert with_tuned(a_suite(), tmp_path).tuned == {}
    assert capsys.readouterr().err.startswith(f"warning: {path} was written by another version and is not used")


# -- values of the package ------------------------------------------------------------------------------------------


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that has values for the suite."""
    monkeypatch.setattr(tuned_module, "ROOT", tmp_path / "site-packages")
    write(a_suite(), tmp_path / "site-packages")
    return tmp_path / "site-packages" / "tuned"


def test_values_of_the_package_serve_any_folder(
    shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert with_tuned(a_suite(), tmp_path / "elsewhere").cells()[0].params["lr"] == 0.3
    assert capsys.readouterr().err.startswith("all cells use tuned values from the package (mini.toml)")


def test_the_users_own_values_come_before_those_of_the_package(
    shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(a_suite(), tmp_path / "out", params={"lr": 0.03})
    assert with_tuned(a_suite(), tmp_path / "out").cells()[0].params["lr"] == 0.03
    assert capsys.readouterr().err.startswith(f"all cells use tuned values from {tmp_path}/out/tuned/mini.toml (")


def test_a_checkout_reads_its_own_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuned_module, "ROOT", tmp_path)
    write(a_suite(), tmp_path / "results")
    assert len(tuned_choices(a_suite(), tmp_path / "results")) == 1
    with_tuned(a_suite(), tmp_path / "results")
    assert f"from {tmp_path}/results/tuned/mini.toml (" in capsys.readouterr().err


def test_what_is_not_tuned_beside_others_is_told_with_the_command(
    shipped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_tuned(a_suite(methods=["fedvpt", "sgpt"]), tmp_path)
    assert capsys.readouterr().err.splitlines()[-1] == (
        "warning: sgpt: not tuned, while others are; fedprompt tune mini --methods sgpt"
    )


def test_tuned_files_are_part_of_the_package() -> None:
    project = tomllib.loads((RESULTS.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert project["package-dir"]["fedprompt.tuned"] == "results/tuned"
    assert "*.toml" in project["package-data"]["fedprompt.tuned"]
    assert shipped_folder() == RESULTS / "tuned"


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
    warning, _ = capsys.readouterr().err.splitlines()
    assert warning.startswith("warning: 1 of 1 choices in")


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
    monkeypatch.setattr("fedprompt.harness.running.suite_file.load_suite", lambda *_: a_suite())
    monkeypatch.setattr("fedprompt.harness.cli._progress.run_and_record", note)
    monkeypatch.setattr("fedprompt.harness.report.write.write_report", lambda *_: None)
    assert main(["bench", "mini", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.startswith(f"all cells use tuned values from {tmp_path}/tuned/mini.toml")
    assert main(["bench", "mini", "--out", str(tmp_path), "--untuned"]) == 0
    assert capsys.readouterr().err == ""
    assert ran == [0.3, 0.3, 0.1, 0.1]


# -- what the report says -------------------------------------------------------------------------------------------


def test_notes_say_how_often_choices_lie_at_an_edge_and_repeat() -> None:
    settled = entry(a_suite(), at_edge=(), untried=("head_lr",), failed=0)
    assert tuning_notes([entry(a_suite()), settled]) == [
        "2 studies of 4 trials each; 1 of 8 trials failed and counted as the worst.",
        "1 of 2 choices lie at an edge of the tried rates (lr 1); around 1 others the trials ended before every "
        "neighbouring value was tried.",
        "A tuning seed alone would have chosen the same point in 2 of 4 cases; its choices lose 1.0 points of "
        "validation accuracy on average, 2.0 at most.",
    ]
    assert tuning_notes([]) == []


def test_notes_admit_that_one_seed_shows_no_repetition() -> None:
    assert tuning_notes([entry(a_suite(), repeat=())])[-1].startswith("With one tuning seed nothing can be said")


@pytest.mark.slow
def test_neither_optuna_nor_mlflow_is_loaded_to_use_tuned_values() -> None:
    code = "import sys, fedprompt.harness.tuning.tuned; print(sys.modules.keys() & {'optuna', 'mlflow'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
