"""Studies from queue to tuned file: with a runner that trains nothing, and once for real."""

import subprocess
import sys
from pathlib import Path

import pytest
from optuna.trial import TrialState
from support.run_folders import new_store
from support.tuning_bench import KEY, Bench, a_suite, only_search, states, tune

from fedprompt.harness.cells.cell import Cell
from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.cells.suite_file import load_suite
from fedprompt.harness.cli import main
from fedprompt.harness.tuning import queue as _tuning_queue
from fedprompt.harness.tuning import run as _tuning_run
from fedprompt.harness.tuning.file import read_tuned
from fedprompt.harness.tuning.queue import Queue, Result
from fedprompt.harness.tuning.run import choose
from fedprompt.harness.tuning.search import load_tuned, searches, tuned_path, with_tuned


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


@pytest.fixture
def suite() -> Suite:
    return a_suite(**tune())


def a_dead_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_every_value_is_tried_once_and_the_best_chosen(bench: Bench, suite: Suite) -> None:
    bench.tune(suite)
    assert bench.rates == [0.1, 0.03, 0.3]
    [tuned] = read_tuned(tuned_path(suite, bench.out))
    assert (tuned.key, tuned.params, tuned.value, tuned.default_value) == (KEY, {"lr": 0.3}, 0.7, 0.5)
    assert (tuned.finished, tuned.failed, tuned.seeds) == (3, 0, (100,))


def test_the_value_is_the_mean_over_the_tuning_seeds(bench: Bench) -> None:
    [queue] = bench.tune(a_suite(**tune(seeds=[100, 101])))
    assert bench.ran == [(0.1, 100), (0.1, 101), (0.03, 100), (0.03, 101), (0.3, 100), (0.3, 101)]
    assert queue.results()[2].value == pytest.approx(0.7)


def test_a_finished_study_runs_nothing_again(bench: Bench, suite: Suite) -> None:
    bench.tune(suite)
    before = tuned_path(suite, bench.out).read_bytes()
    bench.ran.clear()
    bench.tune(suite)
    assert bench.ran == []
    assert tuned_path(suite, bench.out).read_bytes() == before


def test_a_failed_value_is_run_twice_more_in_one_call(bench: Bench, suite: Suite) -> None:
    bench.act = lambda cell: "no luck" if cell.params["lr"] == 0.3 else ""
    [queue] = bench.tune(suite)
    assert bench.rates == [0.1, 0.03, 0.3, 0.3, 0.3]
    assert queue.results()[2] == Result(4, {"lr": 0.3}, None, "failed", "no luck")
    [tuned] = read_tuned(tuned_path(suite, bench.out))
    assert (tuned.params, tuned.finished, tuned.failed) == ({"lr": 0.1}, 2, 1)


def test_a_failed_value_is_run_again_by_the_next_call(bench: Bench, suite: Suite) -> None:
    bench.act = lambda cell: "no luck" if cell.params["lr"] == 0.3 else ""
    bench.tune(suite)
    bench.ran.clear()
    bench.act = lambda _: ""
    bench.tune(suite)
    assert bench.rates == [0.3]
    assert load_tuned(tuned_path(suite, bench.out)) == {KEY: {"lr": 0.3}}


def test_one_failed_seed_fails_the_trial(bench: Bench) -> None:
    bench.act = lambda cell: "no luck" if (cell.params["lr"], cell.seed) == (0.3, 101) else ""
    [queue] = bench.tune(a_suite(**tune(seeds=[100, 101])))
    assert [result.state for result in queue.results()] == ["complete", "complete", "failed"]


def test_a_study_where_all_fails_chooses_nothing(bench: Bench, suite: Suite) -> None:
    bench.act = lambda _: "no luck"
    [queue] = bench.tune(suite)
    assert choose(queue.results()) is None
    assert not tuned_path(suite, bench.out).exists()


def test_an_interrupted_study_goes_on(bench: Bench, suite: Suite) -> None:
    def interrupt(_: Cell) -> str:
        if len(bench.ran) == 2:
            raise KeyboardInterrupt
        return ""

    bench.act = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.tune(suite)
    [search] = searches(suite)
    assert states(Queue(search, bench.storage)) == [(0.1, "COMPLETE"), (0.03, "FAIL"), (0.3, "FAIL")]
    bench.ran, bench.act = [], lambda _: ""
    bench.tune(suite)
    assert bench.rates == [0.03, 0.3]


def test_a_study_is_written_before_the_next_one_ends(bench: Bench) -> None:
    setting = {"table": "T", "dataset": "glyph-domains", "partition": "domains:m={m}", "m": [2, 3]}
    suite = a_suite(settings=[setting], **tune())

    def interrupt(_: Cell) -> str:
        if len(bench.ran) == 5:
            raise KeyboardInterrupt
        return ""

    bench.act = interrupt
    with pytest.raises(KeyboardInterrupt):
        bench.tune(suite)
    assert list(load_tuned(tuned_path(suite, bench.out))) == [KEY]


def test_the_trial_of_a_killed_process_is_run_again_at_once(bench: Bench, suite: Suite) -> None:
    queue = Queue(only_search(suite), bench.storage)
    killed = queue.ask()
    assert killed is not None
    killed.set_user_attr("process", [_tuning_queue._place(), a_dead_process()])
    bench.tune(suite)
    assert states(queue) == [(0.1, "FAIL"), (0.03, "COMPLETE"), (0.3, "COMPLETE"), (0.1, "COMPLETE")]


def test_a_process_killed_before_it_could_sign_is_found_by_time(
    bench: Bench, suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(only_search(suite), bench.storage)
    queue.study.enqueue_trial({"lr": 0.1})
    queue.study.ask()
    monkeypatch.setattr(_tuning_queue, "GRACE", -1)
    bench.tune(suite)
    assert [trial.state.name for trial in queue.study.trials] == ["FAIL", "COMPLETE", "COMPLETE", "COMPLETE"]


def test_a_pruned_value_is_run_again(bench: Bench, suite: Suite) -> None:
    queue = Queue(only_search(suite), bench.storage)
    trial = queue.ask()
    assert trial is not None
    queue.study.tell(trial, state=TrialState.PRUNED)
    bench.tune(suite)
    assert sorted(bench.rates) == [0.03, 0.1, 0.3]


def test_what_another_process_runs_is_waited_for(bench: Bench, suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Queue(only_search(suite), bench.storage)
    trial = other.ask()
    assert trial is not None
    monkeypatch.setattr("time.sleep", lambda _: other.tell(trial, 0.9))
    bench.tune(suite)
    assert bench.rates == [0.03, 0.3]
    assert load_tuned(tuned_path(suite, bench.out)) == {KEY: {"lr": 0.1}}


def test_ties_go_to_the_default_then_to_the_first() -> None:
    def results(*values: float | None) -> list[Result]:
        return [Result(i, {"lr": i}, value, "complete") for i, value in enumerate(values)]

    assert choose(results(0.5, 0.5, 0.4)).point == {"lr": 0}  # type: ignore[union-attr]
    assert choose(results(0.4, 0.5, 0.5)).point == {"lr": 1}  # type: ignore[union-attr]
    assert choose(results(0.1 + 0.2, 0.3, None)).point == {"lr": 0}  # type: ignore[union-attr]
    assert choose(results(0.3, 0.1 + 0.2)).point == {"lr": 0}  # type: ignore[union-attr]  # not by the last bit


def test_tuning_some_methods_keeps_the_choices_of_others(bench: Bench) -> None:
    both = a_suite(methods=["fedvpt", "head-tune"], **tune())
    bench.tune(both.only(["fedvpt"]))
    bench.tune(both.only(["head-tune"]))
    assert [key[0] for key in load_tuned(tuned_path(both, bench.out))] == ["fedvpt", "head-tune"]


def test_tpe_begins_with_the_default_and_keeps_to_the_budget_and_the_range(bench: Bench) -> None:
    suite = a_suite(**tune(trials=6))
    [queue] = bench.tune(suite, "tpe")
    assert bench.rates[0] == 0.1
    assert len(bench.rates) == len(set(bench.rates)) == 6
    assert all(0.03 <= rate <= 0.3 for rate in bench.rates)
    assert queue.complete


def test_tpe_interrupted_and_resumed_tries_the_same_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = a_suite(**tune(trials=5))
    whole, parts = Bench(tmp_path / "whole", monkeypatch), Bench(tmp_path / "parts", monkeypatch)
    monkeypatch.setattr(_tuning_run, "execute", whole._execute)
    whole.tune(suite, "tpe")

    def interrupt(_: Cell) -> str:
        if len(parts.ran) == 3:
            raise KeyboardInterrupt
        return ""

    monkeypatch.setattr(_tuning_run, "execute", parts._execute)
    parts.act = interrupt
    with pytest.raises(KeyboardInterrupt):
        parts.tune(suite, "tpe")
    parts.tune(suite, "tpe")
    assert parts.rates[:3] == whole.rates[:3]
    assert parts.rates[3] == whole.rates[2]  # the value that was interrupted
    assert len(set(parts.rates)) == 5


def test_tpe_runs_a_failed_value_again(bench: Bench) -> None:
    bench.act = lambda _: "no luck" if len(bench.ran) == 2 else ""
    [queue] = bench.tune(a_suite(**tune(trials=3)), "tpe")
    assert bench.rates[1] == bench.rates[2]
    assert [result.state for result in queue.results()] == ["complete"] * 3


MINI = """
methods = ["fedvpt", "head-tune"]
seeds = [0]
backbone = "micro-vit"
weights = "random"
protocol = { rounds = 1, epochs = 1, last = 1 }
tune = { trials = 2, grid = { lr = [0.01, 0.1] }, protocol = { val_fraction = 0.5 } }
settings = [{ table = "T", dataset = "glyph-domains", partition = "domains:m=6,shots=2,test_shots=1" }]
"""


def test_from_command_to_tuned_cells(tmp_path: Path, shared_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mini.toml").write_text(MINI)
    new_store(tmp_path)
    command = ["tune", str(tmp_path / "mini.toml"), "--out", str(tmp_path), "--workers", "1", "--device", "cpu"]
    assert main(command) == 0
    assert f"chosen values: {tmp_path}/tuned/mini.toml" in capsys.readouterr().out
    chosen = {entry.method: entry for entry in read_tuned(tmp_path / "tuned" / "mini.toml")}
    assert sorted(chosen) == ["fedvpt", "head-tune"]
    assert all(entry.value >= (entry.default_value or 0) and entry.finished == 2 for entry in chosen.values())
    suite = with_tuned(load_suite(str(tmp_path / "mini.toml")), tmp_path)
    assert {cell.method: cell.params["lr"] for cell in suite.cells()} == {
        method: entry.params["lr"] for method, entry in chosen.items()
    }
    assert len(list((tmp_path / "runs").glob("*/done"))) == 4
