"""Studies and trials in MLflow."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.run_folders import new_store
from support.tuning_bench import KEY, Bench, a_suite, only_search, tune

from fedprompt.harness.recording.store import connect
from fedprompt.harness.running.suite import Suite
from fedprompt.harness.tuning.study_tracker import tuning_frame
from fedprompt.harness.tuning.tuned import load_tuned, tuned_path

if TYPE_CHECKING:
    from mlflow.entities import Run

NOBODY = "http://127.0.0.1:9"  # the discard port: refused at once


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return new_store(tmp_path)


def runs(uri: str, phase: str) -> list["Run"]:
    client = connect(uri)
    experiment = client.get_experiment_by_name("fedprompt/glyph-domains")
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id], f"tags.phase = '{phase}'", order_by=["start_time"]))


def test_trials_are_children_of_their_study(bench: Bench, suite: Suite, uri: str) -> None:
    bench.tune(suite, uri=uri)
    [parent] = runs(uri, "study")
    trials = runs(uri, "tune")
    assert {run.data.tags["mlflow.parentRunId"] for run in trials} == {parent.info.run_id}
    assert {run.data.tags["search.lr"]: run.data.metrics["average"] for run in trials} == {
        "0.1": 0.5,
        "0.03": 0.2,
        "0.3": 0.7,
    }
    tags, name = parent.data.tags, only_search(suite).name
    assert tuple(tags[name] for name in ("method", "dataset", "partition", "head")) == KEY
    assert (tags["suite"], tags["study"]) == ("mini", name)
    assert parent.data.params["grid.lr"] == "0.03, 0.1, 0.3"
    assert (parent.data.metrics["best_value"], parent.data.metrics["default_value"]) == (0.7, 0.5)
    assert (parent.info.status, tags["chosen.lr"]) == ("FINISHED", "0.3")


def test_a_store_that_is_away_stops_nothing_and_the_next_call_records_all(bench: Bench, suite: Suite, uri: str) -> None:
    bench.tune(suite, uri=NOBODY)
    assert load_tuned(tuned_path(suite, bench.out)) == {KEY: {"lr": 0.3}}
    bench.tune(suite, uri=uri)
    bench.tune(suite, uri=uri)
    [parent] = runs(uri, "study")
    assert [run.data.tags["mlflow.parentRunId"] for run in runs(uri, "tune")] == [parent.info.run_id] * 3


def test_the_frame_needs_nothing_but_mlflow(bench: Bench, suite: Suite, uri: str) -> None:
    assert tuning_frame(uri, suite).empty
    bench.act = lambda cell: "no luck" if cell.params["lr"] == 0.03 else ""
    bench.tune(suite, uri=uri)
    frame = tuning_frame(uri, suite)
    assert list(frame) == [
        "method",
        "title",
        "dataset",
        "partition",
        "head",
        "setting",
        "lr",
        "value",
        "state",
        "chosen",
    ]
    assert frame[["method", "title", "setting"]].drop_duplicates().to_numpy().tolist() == [["fedvpt", "FedVPT", "m=2"]]
    assert frame["lr"].tolist() == [0.1, 0.03, 0.3]
    assert frame["state"].tolist() == ["complete", "failed", "complete"]
    assert frame["chosen"].tolist() == [False, False, True]
    assert frame["value"].dropna().tolist() == [0.5, 0.7]


def test_the_frame_shows_the_study_that_ended_last(bench: Bench, suite: Suite, uri: str) -> None:
    bench.tune(suite, uri=uri)
    bench.tune(a_suite(**tune(grid={"lr": [0.1, 0.3], "head_lr": []}, trials=2)), uri=uri)
    assert tuning_frame(uri, suite)["lr"].tolist() == [0.1, 0.3]


def test_the_frame_of_a_suite_shows_equal_studies_of_others(bench: Bench, suite: Suite, uri: str) -> None:
    bench.tune(dataclasses.replace(suite, name="whole"), uri=uri)
    assert tuning_frame(uri, suite)["lr"].tolist() == [0.1, 0.03, 0.3]
    assert tuning_frame(uri, a_suite(**tune(seeds=[103]))).empty
