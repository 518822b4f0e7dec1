"""Studies from proposal to tuned file: with cells that train nothing, and once for real."""

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import done_folder, new_store
from support.tuning_bench import KEY, Bench, a_suite, only_search, recorded_trials, tune

from fedprompt.harness.cli import main
from fedprompt.harness.running import run as cell_run
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.execution import CellOutcome, execute
from fedprompt.harness.running.folder import finish, is_locked, open_folder, run_folder
from fedprompt.harness.running.suite import Suite
from fedprompt.harness.running.suite_file import load_suite
from fedprompt.harness.tuning import tune as tune_module
from fedprompt.harness.tuning.search import Result, best_result
from fedprompt.harness.tuning.tuned import load_tuned, read_tuned, tuned_path, with_tuned


def fail_at(rate: float) -> Any:
    return lambda cell: "no luck" if cell.params["lr"] == rate else ""


def interrupt_at(bench: Bench, count: int) -> Any:
    """Ctrl-C while the cell number ``count`` runs."""

    def act(_: Cell) -> str:
        if len(bench.ran) == count:
            raise KeyboardInterrupt
        return ""

    return act


def test_every_value_is_tried_once_and_the_best_chosen(bench: Bench, suite: Suite) -> None:
    bench.tune(suite)
    assert bench.rates == [0.1, 0.03, 0.3]
    assert bench.trials(only_search(suite)) == [(0.1, "COMPLETE"), (0.03, "COMPLETE"), (0.3, "COMPLETE")]
    [tuned] = read_tuned(tuned_path(suite, bench.out))
    assert (tuned.key, tuned.params, tuned.value, tuned.default_value) == (KEY, {"lr": 0.3}, 0.7, 0.5)
    assert (tuned.trials, tuned.finished, tuned.failed, tuned.seeds) == (3, 3, 0, (100,))
    assert (tuned.at_edge, tuned.untried, tuned.repeat) == (("lr",), ("lr",), ())


def test_the_best_points_meet_on_further_seeds(bench: Bench) -> None:
    """The best of the search had luck."""
    bench.accuracy |= {(0.3, 102): 0.1, (0.3, 103): 0.3}
    suite = a_suite(**tune(finals=[102, 103], trials=4))
    bench.tune(suite)
    assert sorted(bench.ran[4:]) == [(rate, seed) for rate in (0.1, 0.3, 0.948683) for seed in (102, 103)]
    [tuned] = read_tuned(tuned_path(suite, bench.out))
    assert (tuned.params, tuned.value, tuned.seeds) == ({"lr": 0.1}, 0.5, (100, 102, 103))
    assert len(bench.trials(only_search(suite))) == 4


def test_a_finalist_that_fails_is_not_chosen(bench: Bench) -> None:
    bench.act = lambda cell: "no luck" if (cell.params["lr"], cell.seed) == (0.3, 102) else ""
    suite = a_suite(**tune(finals=[102, 103]))
    bench.tune(suite)
    [tuned] = read_tuned(tuned_path(suite, bench.out))
    assert tuned.params == {"lr": 0.1}


def test_a_finalist_that_fails_counts_as_the_worst_on_every_seed_of_the_finals(bench: Bench) -> None:
    bench.act = lambda cell: "no luck" if (cell.params["lr"], cell.seed) == (0.3, 102) else ""
    [study] = bench.tune(a_suite(**tune(finals=[102, 103])))
    assert [result.finals for result in study.results if result.point["lr"] == 0.3] == [(0.0, 0.0)]


def test_finals_that_were_interrupted_go_on(bench: Bench) -> None:
    suite = a_suite(**tune(finals=[102, 103]))
    bench.act = interrupt_at(bench, 5)
    with pytest.raises(KeyboardInterrupt):
        bench.tune(suite)
    assert not tuned_path(suite, bench.out).exists()
    bench.act = lambda _: ""
    bench.tune(suite)
    assert len(bench.ran) == 3 + 6 + 1
    assert [entry.params for entry in read_tuned(tuned_path(suite, bench.out))] == [{"lr": 0.3}]


def test_the_best_at_an_edge_leads_beyond_it(bench: Bench) -> None:
    bench.accuracy |= {0.948683: 0.8, 3.0: 0.1}
    suite = a_suite(**tune(trials=5))
    bench.tune(suite)
    assert bench.rates == [0.1, 0.03, 0.3, 0.948683, 3.0]
    [tuned] = read_tuned(tuned_path(suite, bench.out))
    assert (tuned.params, tuned.at_edge, tuned.untried) == ({"lr": 0.948683}, (), ())


def test_what_a_tuning_seed_alone_would_have_chosen_is_recorded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {(0.1, 101): 0.8, (0.3, 101): 0.7}

    def finish(cell: Cell) -> Path:
        accuracy = values.get((cell.params["lr"], cell.seed), bench.accuracy[cell.params["lr"]])
        return done_folder(bench.out, cell, [[accuracy] * 2] * cell.protocol.rounds)

    monkeypatch.setattr(bench, "finish", finish)
    suite = a_suite(**tune(seeds=[100, 101]))
    bench.tune(suite)
    [tuned] = read_tuned(tuned_path(suite, bench.out))
    assert tuned.params == {"lr": 0.3}
    assert tuned.repeat == (
        {"seed": 100, "params": {"lr": 0.3}, "loss": 0.0},
        {"seed": 101, "params": {"lr": 0.1}, "loss": 0.05},
    )


def test_the_value_is_the_mean_over_the_readings(bench: Bench, suite: Suite) -> None:
    search = dataclasses.replace(only_search(suite), readings=("average", "average_ft"))
    [cell] = search.cells({"lr": 0.1})
    folder = bench.finish(cell)
    (folder / "summary.json").write_text('{"average": 0.5, "average_ft": 0.7}')
    result = tune_module._result(search, {"lr": 0.1}, [CellOutcome(cell, folder)])
    assert result.value == pytest.approx(0.6)


def test_the_value_is_the_mean_over_the_tuning_seeds(bench: Bench) -> None:
    [study] = bench.tune(a_suite(**tune(seeds=[100, 101])))
    assert bench.ran == [(0.1, 100), (0.1, 101), (0.03, 100), (0.03, 101), (0.3, 100), (0.3, 101)]
    assert study.results[2].value == pytest.approx(0.7)


def test_an_accuracy_that_is_no_number_is_a_failure(bench: Bench, suite: Suite) -> None:
    [cell] = only_search(suite).cells({"lr": 0.3})
    finish(bench.finish(cell), {"average": float("nan"), "data_checksum": "glyphs"})
    [study] = bench.tune(suite)
    assert study.results[2] == Result({"lr": 0.3}, reason="the validation accuracy is nan")


def test_a_finished_study_runs_nothing_again(bench: Bench, suite: Suite) -> None:
    bench.tune(suite)
    before = tuned_path(suite, bench.out).read_bytes(), bench.trials(only_search(suite))
    bench.ran.clear()
    bench.tune(suite)
    assert bench.ran == []
    assert (tuned_path(suite, bench.out).read_bytes(), bench.trials(only_search(suite))) == before


def test_finished_cells_are_results_without_any_database(bench: Bench) -> None:
    suite = a_suite(**tune(seeds=[100, 101]))
    search = only_search(suite)
    for cell in (*search.cells({"lr": 0.1}), search.cells({"lr": 0.3})[0]):
        bench.finish(cell)
    bench.tune(suite)
    assert sorted(bench.ran) == [(0.03, 100), (0.03, 101), (0.3, 101)]
    assert load_tuned(tuned_path(suite, bench.out)) == {KEY: {"lr": 0.3}}


def test_a_failed_value_is_recorded_with_its_reason_and_not_chosen(bench: Bench, suite: Suite) -> None:
    bench.act = fail_at(0.3)
    [study] = bench.tune(suite)
    assert bench.rates == [0.1, 0.03, 0.3]
    assert study.results[2] == Result({"lr": 0.3}, None, "no luck")
    assert bench.trials(study.search) == [(0.1, "COMPLETE"), (0.03, "COMPLETE"), (0.3, "FAIL")]
    [tuned] = read_tuned(tuned_path(suite, bench.out))
    assert (tuned.params, tuned.finished, tuned.failed) == ({"lr": 0.1}, 2, 1)


def test_a_failed_value_is_run_again_by_the_next_call(bench: Bench, suite: Suite) -> None:
    bench.act = fail_at(0.3)
    bench.tune(suite)
    bench.ran.clear()
    bench.act = lambda _: ""
    bench.tune(suite)
    assert bench.rates == [0.3]
    assert bench.trials(only_search(suite))[2:] == [(0.3, "FAIL"), (0.3, "COMPLETE")]
    assert load_tuned(tuned_path(suite, bench.out)) == {KEY: {"lr": 0.3}}


def test_one_failed_seed_fails_the_trial(bench: Bench) -> None:
    bench.act = lambda cell: "no luck" if (cell.params["lr"], cell.seed) == (0.3, 101) else ""
    [study] = bench.tune(a_suite(**tune(seeds=[100, 101])))
    assert [result.state for result in study.results] == ["complete", "complete", "failed"]


def test_a_study_where_all_fails_chooses_nothing(bench: Bench, suite: Suite) -> None:
    bench.act = lambda _: "no luck"
    [study] = bench.tune(suite)
    assert best_result(study.results) is None
    assert not tuned_path(suite, bench.out).exists()


def test_an_interrupted_study_goes_on(bench: Bench, suite: Suite) -> None:
    bench.act = interrupt_at(bench, 2)
    with pytest.raises(KeyboardInterrupt):
        bench.tune(suite)
    assert bench.trials(only_search(suite)) == [(0.1, "COMPLETE")]
    bench.ran, bench.act = [], lambda _: ""
    bench.tune(suite)
    assert bench.rates == [0.03, 0.3]


def test_a_study_is_written_before_the_next_one_ends(bench: Bench) -> None:
    setting = {"table": "T", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [2, 3]}
    suite = a_suite(settings=[setting], **tune())
    bench.act = interrupt_at(bench, 5)
    with pytest.raises(KeyboardInterrupt):
        bench.tune(suite)
    assert list(load_tuned(tuned_path(suite, bench.out))) == [KEY]


def test_what_another_process_runs_is_waited_for(bench: Bench, suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    [cell] = only_search(suite).cells({"lr": 0.1})
    folder, bench.accuracy[0.1] = run_folder(bench.out, cell), 0.9
    other = open_folder(folder, cell)
    other.__enter__()
    assert is_locked(folder)

    def end_of_the_other(_: float) -> None:
        other.__exit__(None, None, None)
        bench.finish(cell)

    monkeypatch.setattr("time.sleep", end_of_the_other)
    bench.tune(suite)
    assert bench.rates == [0.03, 0.3]
    assert load_tuned(tuned_path(suite, bench.out)) == {KEY: {"lr": 0.1}}


def test_what_another_process_leaves_unfinished_is_run_here(
    bench: Bench, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    [cell] = only_search(suite).cells({"lr": 0.1})
    other = open_folder(run_folder(bench.out, cell), cell)
    other.__enter__()
    monkeypatch.setattr("time.sleep", lambda _: other.__exit__(None, None, None))
    bench.tune(suite)
    assert bench.rates == [0.03, 0.3, 0.1]


def test_a_cell_that_another_process_has_taken_meanwhile_has_not_failed(
    bench: Bench, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the lock and the run."""
    taken: list[float] = []

    def race(cells: list[Cell], *rest: Any) -> Any:
        for cell in cells:
            if cell.params["lr"] == 0.03 and not taken:
                taken.append(cell.params["lr"])
                with open_folder(run_folder(bench.out, cell), cell):
                    yield from execute([cell], RunEnvironment(bench.out), lambda _: None)
                bench.finish(cell)
            else:
                yield from bench.execute([cell], *rest)

    monkeypatch.setattr(tune_module, "execute", race)
    [study] = bench.tune(suite)
    assert taken == [0.03]
    assert bench.rates == [0.1, 0.3]
    assert [result.state for result in study.results] == ["complete"] * 3
    assert not list(bench.out.glob("runs/*/failed.json"))


def test_a_cell_that_another_process_finishes_meanwhile_is_not_run_again(
    bench: Bench, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the marker and the lock."""
    [cell] = only_search(suite).cells({"lr": 0.1})

    def assemble(*_: Any) -> tuple[None, None, None]:
        bench.finish(cell)
        return None, None, None  # nothing to run with

    monkeypatch.setattr(cell_run, "assemble", assemble)
    assert list(execute([cell], RunEnvironment(bench.out), lambda _: None)) == [
        CellOutcome(cell, run_folder(bench.out, cell))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_several_processes_run_every_cell_once(tmp_path: Path, kill: bool) -> None:
    """A process that is killed leaves the cell that it was running to the other; nothing that was finished is rerun."""
    log, suite = tmp_path / "log", a_suite()
    log.touch()
    code = "import sys, pathlib, support.tuning_bench as s; s.tune_beside_others(*map(pathlib.Path, sys.argv[1:]), 0.5)"
    command = [sys.executable, "-c", code, str(tmp_path), str(log)]
    paths = filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    while kill and len(log.read_text().splitlines()) < 2:
        assert processes[0].poll() is None
        time.sleep(0.05)
    if kill:
        processes[0].send_signal(signal.SIGKILL)
    assert [process.wait(timeout=600) for process in processes] == [-signal.SIGKILL if kill else 0, 0]
    runs = Counter(log.read_text().split())
    assert set(runs) == {cell.hash for rate in (0.03, 0.1, 0.3) for cell in only_search(suite).cells({"lr": rate})}
    assert sum(runs.values()) - len(runs) <= kill
    states = sorted(recorded_trials(only_search(suite), f"sqlite:///{tmp_path}/optuna.db"))
    assert states == [(0.03, "COMPLETE"), (0.1, "COMPLETE"), (0.3, "COMPLETE")]
    assert list(load_tuned(tuned_path(suite, tmp_path))) == [KEY]


def test_tuning_some_methods_keeps_the_choices_of_others(bench: Bench) -> None:
    both = a_suite(methods=["fedvpt", "head-tune"], **tune())
    bench.tune(both.only(["fedvpt"]))
    bench.tune(both.only(["head-tune"]))
    assert [key[0] for key in load_tuned(tuned_path(both, bench.out))] == ["fedvpt", "head-tune"]


def test_tpe_begins_with_the_default_and_keeps_to_the_budget_and_the_range(bench: Bench) -> None:
    [study] = bench.tune(a_suite(**tune(trials=6)), "tpe")
    assert bench.rates[0] == 0.1
    assert len(bench.rates) == len(set(bench.rates)) == 6
    assert all(0.03 <= rate <= 0.3 for rate in bench.rates)
    assert bench.trials(study.search) == [(rate, "COMPLETE") for rate in bench.rates]


@pytest.mark.slow
def test_tpe_interrupted_and_resumed_tries_the_same_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = a_suite(**tune(trials=5))
    whole = Bench(tmp_path / "whole", monkeypatch)
    whole.tune(suite, "tpe")
    parts = Bench(tmp_path / "parts", monkeypatch)
    parts.act = interrupt_at(parts, 3)
    with pytest.raises(KeyboardInterrupt):
        parts.tune(suite, "tpe")
    parts.tune(suite, "tpe")
    assert parts.rates == [*whole.rates[:3], *whole.rates[2:]]  # the third was interrupted


def test_tpe_runs_a_failed_value_again_in_the_next_call(bench: Bench) -> None:
    bench.act = lambda _: "no luck" if len(bench.ran) == 2 else ""
    [study] = bench.tune(a_suite(**tune(trials=3)), "tpe")
    assert [result.state for result in study.results] == ["complete", "failed", "complete"]
    [study] = bench.tune(a_suite(**tune(trials=3)), "tpe")
    assert bench.rates[3:] == [bench.rates[1]]
    assert [result.state for result in study.results] == ["complete"] * 3


def test_tpe_proposes_as_many_points_as_there_are_workers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    waves: list[int] = []

    def count(cells: list[Cell], *rest: Any) -> Any:
        waves.append(len(cells))
        return bench.execute(cells, *rest)

    monkeypatch.setattr(tune_module, "execute", count)
    bench.tune(a_suite(**tune(trials=5)), "tpe", workers=2)
    assert waves == [2, 2, 1]


MINI = """
methods = ["fedvpt", "head-tune"]
seeds = [0]
backbone = "micro-vit"
weights = "random"
protocol = { rounds = 1, epochs = 1, last = 1 }
tune = { trials = 2, grid = { lr = [0.01, 0.1], head_lr = [] }, protocol = { val_fraction = 0.5 } }
settings = [{ table = "T", dataset = "glyph-domains", partition = "domains:m=6,shots=2,test_shots=1" }]
"""


@pytest.mark.slow
def test_from_command_to_tuned_cells(tmp_path: Path, shared_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mini.toml").write_text(MINI)
    new_store(tmp_path)
    command = ["tune", str(tmp_path / "mini.toml"), "--out", str(tmp_path), "--workers", "1", "--device", "cpu"]
    assert main(command) == 0
    assert f"chosen values: {tmp_path}/tuned/mini.toml" in capsys.readouterr().out
    entries = {entry.method: entry for entry in read_tuned(tmp_path / "tuned" / "mini.toml")}
    assert sorted(entries) == ["fedvpt", "head-tune"]
    assert all(entry.value >= (entry.default_value or 0) and entry.finished == 2 for entry in entries.values())
    suite = with_tuned(load_suite(str(tmp_path / "mini.toml")), tmp_path)
    assert {cell.method: cell.params["lr"] for cell in suite.cells()} == {
        method: entry.params["lr"] for method, entry in entries.items()
    }
    assert len(list((tmp_path / "runs").glob("*/done"))) == 4
