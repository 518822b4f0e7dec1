"""The tuned file, and what the bench makes of it."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.tuning_bench import KEY, a_suite, only_search

from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.cells.suite_file import load_suite
from fedprompt.harness.cli import main
from fedprompt.harness.core.errors import UserError
from fedprompt.harness.tuning.tuned import Tuned, load_tuned, read_tuned, tuned_path, with_tuned, write_tuned

RESULTS = Path(__file__).parents[3] / "results"


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
    write_tuned(tmp_path / "a.toml", [entry(a_suite(), study="mini/fedvpt")])
    assert (tmp_path / "a.toml").read_text().splitlines()[1:] == [
        "",
        "[[study]]",
        'method = "fedvpt"',
        'dataset = "glyph-domains"',
        'partition = "domains:m=2"',
        'study = "mini/fedvpt"',
        "value = 0.75",
        "default_value = 0.5",
        "finished = 3",
        "failed = 0",
        "seeds = [",
        "    100,",
        "    101,",
        "]",
        'sampler = "grid"',
        'code = "0.1.0"',
        "",
        "[study.params]",
        "lr = 0.3",
    ]


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


def test_the_committed_file_can_be_used() -> None:
    suite = with_tuned(load_suite("embedded"), RESULTS)
    assert len(suite.tuned) == len(read_tuned(tuned_path(suite, RESULTS))) == 65


def test_neither_optuna_nor_mlflow_is_loaded_to_use_tuned_values() -> None:
    code = "import sys, fedprompt.harness.tuning.tuned; print(sys.modules.keys() & {'optuna', 'mlflow'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
