"""Trials in Optuna's database: what is begun, what is given up, what counts."""

import time
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState
from support.tuning_bench import Bench, a_suite, only_search, states, tune

from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.core.errors import UserError
from fedprompt.harness.tuning.queue import Queue, heartbeat, open_storage


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


@pytest.fixture
def suite() -> Suite:
    return a_suite(**tune())


def test_an_accuracy_that_is_no_number_is_a_failure(bench: Bench, suite: Suite) -> None:
    queue = Queue(only_search(suite), bench.storage)
    trial = queue.ask()
    assert trial is not None
    queue.tell(trial, float("nan"))
    assert queue.results()[0].reason == "the validation accuracy is nan"


def test_a_trial_without_heartbeat_is_run_again_after_the_grace(bench: Bench, suite: Suite) -> None:
    storage = open_storage(f"sqlite:///{bench.out}/optuna.db", heartbeat=1, grace=1)
    killed = Queue(only_search(suite), storage)
    trial = killed.ask()
    assert trial is not None
    trial.set_user_attr("process", ["another host", 1])
    queue = Queue(only_search(suite), storage)
    assert [queue.ask().params["lr"] for _ in range(2)] == [0.03, 0.3]  # type: ignore[union-attr]
    time.sleep(2.1)  # the database counts whole seconds
    assert queue.ask().params == {"lr": 0.1}  # type: ignore[union-attr]
    assert states(queue)[0] == (0.1, "FAIL")


def test_a_trial_with_heartbeat_is_left_alone(bench: Bench, suite: Suite) -> None:
    storage = open_storage(f"sqlite:///{bench.out}/optuna.db", heartbeat=1, grace=1)
    queue = Queue(only_search(suite), storage)
    trial = queue.ask()
    assert trial is not None
    trial.set_user_attr("process", ["another host", 1])
    with heartbeat([queue], interval=0.2):
        time.sleep(2.1)
        other = Queue(only_search(suite), storage)
        assert [other.ask().params["lr"] for _ in range(2)] == [0.03, 0.3]  # type: ignore[union-attr]
        assert other.ask() is None


def test_of_two_trials_with_one_value_the_first_counts(bench: Bench, suite: Suite) -> None:
    """As when two processes queue it in the same moment."""
    first, second = (Queue(only_search(suite), bench.storage) for _ in range(2))
    for _ in range(2):
        waiting = optuna.create_trial(state=TrialState.WAITING, params={"lr": 0.1}, distributions=first._space)
        first.study.add_trial(waiting)
    assert [queue.ask().params["lr"] for queue in (first, second)] == [0.1, 0.03]  # type: ignore[union-attr]
    assert states(first)[:2] == [(0.1, "RUNNING"), (0.1, "FAIL")]


def test_a_trial_taken_for_dead_may_still_end(bench: Bench, suite: Suite) -> None:
    queue = Queue(only_search(suite), bench.storage)
    trial = queue.ask()
    assert trial is not None
    queue.study.tell(trial.number, state=TrialState.FAIL)
    queue.tell(trial, 0.5)
    queue.tell(trial, reason="no luck")
    assert states(queue) == [(0.1, "FAIL")]


def test_a_database_that_cannot_be_opened_is_one_line_without_password(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be opened") as error:
        open_storage("postgresql://me:secret@127.0.0.1:9/x")
    assert "secret" not in str(error.value)
