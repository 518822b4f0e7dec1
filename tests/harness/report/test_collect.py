"""From MLflow to frames; over seeds every wrong order gives another number."""

import dataclasses
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
from support.report_suites import a_setting, a_suite, csv_of, every_kind, finetuned, report, results_frame, run_all
from support.run_folders import done_folder

from fedprompt.core.errors import UserError
from fedprompt.harness.measuring.evaluation import Record
from fedprompt.harness.measuring.metrics import records_frame
from fedprompt.harness.recording.tracker import Tracker, sync
from fedprompt.harness.report.collect import collect, place_files, short_commit
from fedprompt.harness.report.values import client_values
from fedprompt.harness.running.folder import note_failure, run_folder
from fedprompt.harness.running.suite import Suite


def test_one_row_per_cell_from_mlflow_alone(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt", "head-tune"))
    done_folder(tmp_path, suite.cells()[1], [[0.5, 0.9], [0.3, 0.7]])
    sync(tmp_path, uri)
    shutil.rmtree(tmp_path / "runs")
    results = collect(suite, uri).results
    assert results["method"].tolist() == ["fedvpt", "head-tune"]
    assert results["status"].tolist() == ["missing", "finished"]
    assert results["average"].tolist()[1] == pytest.approx(0.6)
    assert results["worst_local"].tolist()[1] == pytest.approx(0.4)
    assert results["partition_hash"].tolist() == ["", "0123456789abcdef"]


@pytest.mark.slow
def test_mlflow_is_searched_once_and_the_suite_expanded_once(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch, no_figures: None
) -> None:
    suite = every_kind()
    run_all(suite, uri, tmp_path)
    calls: Counter[str] = Counter()

    def counted(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    counted(mlflow.MlflowClient, "search_runs")
    counted(Suite, "_make_cell")
    report(suite, uri, tmp_path)
    assert calls == {"search_runs": 1}  # one data set; the suite was expanded when it was run


def test_two_readings_of_one_training_are_two_rows_with_their_own_numbers(tmp_path: Path, uri: str) -> None:
    suite = a_suite(settings=(a_setting(methods=("fedvpt",), policies=("local", "global", "global_then_ft")),))
    levels = [[0.2, 0.6], [0.4, 0.8]]
    for cell in suite.cells():
        done_folder(tmp_path, cell, levels, extra=finetuned(cell, levels, more=0.1))
    sync(tmp_path, uri)
    recorded = collect(suite, uri)
    results = recorded.results
    assert results["policy"].tolist() == results["reading"].tolist() == ["local", "global", "global_then_ft"]
    assert results["cell"].nunique() == 2
    assert results["average"].tolist() == pytest.approx([0.5, 0.5, 0.6])
    assert results["worst_local"].tolist() == pytest.approx([0.3, 0.3, 0.4])
    assert results["floats_up"].tolist() == [50.0] * 3  # of the training
    assert recorded.records.groupby("policy", sort=False)["accuracy"].mean().tolist() == pytest.approx([0.5, 0.5, 0.6])
    assert len(recorded.rounds) == 3 * 2
    assert recorded.under("global").records["reading"].unique().tolist() == ["global"]


def test_the_papers_policy_reads_what_the_method_has_in_its_paper(tmp_path: Path, uri: str) -> None:
    results = collect(a_suite(("head-tune", "fedvpt")), uri).results
    assert results[["policy", "reading"]].values.tolist() == [["paper", "global"], ["paper", "local"]]


def test_the_domains_of_a_client_are_added_up(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    sketches = [Record(round_, 0, "sketch", 0, 3000, True, policy="local") for round_ in (1, 2)]
    done_folder(tmp_path, suite.cells()[0], [[0.8, 0.6]] * 2, extra=sketches)
    sync(tmp_path, uri)
    records = collect(suite, uri).records.set_index(["round", "client"])
    assert records.loc[(2, 0), ["correct", "total", "accuracy"]].tolist() == [800, 4000, 0.2]  # 0.4 over domains
    assert len(records) == 4


def test_a_further_measure_of_a_client_stays_with_its_records() -> None:
    suite = a_suite(("fedvpt",))
    [cell] = suite.cells()
    domains = [Record(2, client, domain, 500, 1000, True, policy="local") for client in (0, 1) for domain in "ab"]
    records = records_frame(domains).assign(brier=[0.2, 0.2, 0.4, 0.4])
    recorded = place_files(suite, suite.planned(), results_frame(suite), {cell.hash: records}, {})
    assert recorded.records["total"].tolist() == [2000, 2000]
    assert client_values(suite.settings, recorded.records, "brier")["value"].tolist() == [0.2, 0.4]


def test_worst_local_is_minimum_in_a_round_then_mean_over_rounds_then_over_seeds(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",), (0, 1))
    for cell, rounds in zip(suite.cells(), ([[0.2, 0.6], [0.8, 0.4]], [[0.9, 0.5], [0.5, 0.9]]), strict=True):
        done_folder(tmp_path, cell, rounds)
    sync(tmp_path, uri)
    summary = csv_of(suite, collect(suite, uri).results).set_index("metric")
    assert summary.loc["worst_local", "mean"] == pytest.approx(40.0)  # 60 if rounds or seeds are averaged first
    assert summary.loc["worst_local", "std"] == pytest.approx(20 / 2**0.5)  # of 30 and 50, not over rounds
    assert summary.loc["average", "mean"] == pytest.approx(60.0)


def test_never_sampled_clients_are_left_out_of_the_second_value_seed_by_seed(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",), (0, 1))
    for cell, never in zip(suite.cells(), ((0,), ()), strict=True):
        done_folder(tmp_path, cell, [[0.2, 0.8]] * 2, never)
    sync(tmp_path, uri)
    summary = csv_of(suite, collect(suite, uri).results).set_index("metric")
    assert summary.loc["average", ["mean", "mean_exclude"]].tolist() == pytest.approx([50.0, 65.0])
    assert summary.loc["worst_local", ["mean", "mean_exclude"]].tolist() == pytest.approx([20.0, 50.0])


def test_each_kind_has_its_metrics(tmp_path: Path, uri: str) -> None:
    suite = every_kind()
    run_all(suite, uri, tmp_path)
    summary = csv_of(suite, collect(suite, uri).results)
    by_kind = {kind: list(part["metric"].unique()) for kind, part in summary.groupby("kind", sort=False)}
    assert list(by_kind) == ["heterogeneity", "unseen", "ablation", "vsweep"]
    assert by_kind["heterogeneity"] == ["average", "worst_local"]
    assert by_kind["unseen"] == ["unseen_average"]
    assert by_kind["vsweep"] == [f"average_samples_{v}" for v in range(1, 11)]
    unseen = summary[summary["metric"] == "unseen_average"]
    assert unseen["mean"].tolist() == pytest.approx([70.05, 70.05])  # 700 and 701 of 1000
    nested = summary[summary["kind"] == "vsweep"]["mean"]
    assert nested.tolist() == pytest.approx([50.1 + 0.1 * v for v in range(10)])


def test_a_cell_in_two_tables_is_in_both() -> None:
    suite = every_kind((0,))
    results = results_frame(suite)
    shown = results[results["method"] == "pfedbayespt"]
    assert shown["cell"].nunique() == 2  # the method and its variant
    assert shown["table"].tolist() == ["Feature shift", "Ablation", "Ablation", "V-sweep"]


def test_a_running_cell_is_missing(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    Tracker(uri, tmp_path)._create(suite.cells()[0], 0.0, [])
    assert collect(suite, uri).results["status"].tolist() == ["missing"]


def test_reason_in_the_run_folder_is_found(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    folder = run_folder(tmp_path, suite.cells()[0])
    folder.mkdir(parents=True)
    note_failure(folder, "out of memory")
    results = collect(suite, uri, tmp_path).results
    assert results[["status", "reason"]].values.tolist() == [["failed", "out of memory"]]


def test_reason_in_mlflow_comes_first(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    folder = run_folder(tmp_path, suite.cells()[0])
    folder.mkdir(parents=True)
    note_failure(folder, "an older one")
    Tracker(uri, tmp_path).failed(suite.cells()[0], "loss is not finite")
    assert collect(suite, uri, tmp_path).results["reason"].tolist() == ["loss is not finite"]


def test_a_damaged_note_of_a_failure_costs_only_its_reason(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    folder = run_folder(tmp_path, suite.cells()[0])
    folder.mkdir(parents=True)
    (folder / "failed.json").write_text("{half")
    results = collect(suite, uri, tmp_path).results
    assert results[["status", "reason"]].values.tolist() == [["failed", "its note cannot be read"]]


def test_a_number_is_no_average_of_the_seeds_that_did_not_diverge(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",), (0, 1))
    first, second = suite.cells()
    done_folder(tmp_path, first, [[0.2, 0.8]] * 2)
    sync(tmp_path, uri)
    Tracker(uri, tmp_path).failed(second, "diverged in round 1, client 3: loss is not finite")
    recorded = collect(suite, uri)
    summary = csv_of(suite, recorded.results).set_index("metric")
    assert recorded.results["status"].tolist() == ["finished", "diverged"]
    assert recorded.records.empty
    assert summary.loc["average", "status"] == "diverged"
    assert pd.isna(summary.loc["average", "mean"])


def test_runs_of_other_code_count_only_if_they_are_accepted(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt", "head-tune"))
    cell, other = suite.cells()
    done_folder(tmp_path, dataclasses.replace(cell, code="before"), [[0.2, 0.8]] * 2)
    done_folder(tmp_path, other, [[0.2, 0.8]] * 2)
    sync(tmp_path, uri)
    columns = ["status", "code", "other_code"]
    assert collect(suite, uri).results[columns].values.tolist() == [
        ["missing", cell.code, "before"],
        ["finished", other.code, ""],
    ]
    accepted = collect(suite, uri, accept_code=True)
    assert accepted.results[columns].values.tolist()[0] == ["finished", "before", "before"]
    assert accepted.records["row"].unique().tolist() == ["fedvpt", "head-tune"]


def test_columns_of_one_name_are_not_mixed() -> None:
    settings = tuple(a_setting(methods=("fedvpt",), protocol={"epochs": epochs}) for epochs in (1, 2))
    suite = a_suite(settings=settings)
    summary = csv_of(suite, results_frame(suite, average=[0.4, 0.6]))
    assert summary[summary["metric"] == "average"]["mean"].tolist() == pytest.approx([40.0, 60.0])


def test_no_database_is_one_line_and_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no MLflow database .*fedprompt bench"):
        collect(a_suite(), f"sqlite:///{tmp_path}/typo.db")
    assert list(tmp_path.iterdir()) == []


def test_server_away_is_one_line() -> None:
    with pytest.raises(UserError, match=r"MLflow at http://127\.0\.0\.1:9 cannot be read"):
        collect(a_suite(), "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("commit", "short"),
    [("0123456789abcdef" * 2 + "01234567-dirty", "0123456789ab-dirty"), ("0123456789abcdef" * 2, "0123456789ab")],
)
def test_commits_are_shortened(commit: str, short: str) -> None:
    assert short_commit(commit) == short
