import json
import shutil
from pathlib import Path

import pytest
from support.report_suites import a_setting, a_suite, every_kind, run_all
from support.run_folders import BACKBONE, done_folder

from fedprompt.harness.recording.tracker import Tracker, sync
from fedprompt.harness.report.collect import collect
from fedprompt.harness.running.folder import finish
from fedprompt.harness.running.suite import Suite


def test_one_row_per_client_and_round_with_its_place(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    done_folder(tmp_path, suite.cells()[0], [[0.5, 0.9], [0.3, 0.7]])
    sync(tmp_path, uri)
    shutil.rmtree(tmp_path / "runs")  # MLflow alone is enough
    records = collect(suite, uri).records
    assert records["accuracy"].tolist() == [0.5, 0.9, 0.3, 0.7]
    assert records["round"].tolist() == [1, 1, 2, 2]
    assert records["client"].tolist() == [0, 1, 0, 1]
    place = records[["table", "kind", "column", "setting", "row", "title", "seed"]].drop_duplicates()
    assert place.values.tolist() == [["Feature shift", "heterogeneity", 0, "m=1", "fedvpt", "FedVPT", 0]]


def test_one_row_per_round_with_loss_and_payload(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    done_folder(tmp_path, suite.cells()[0])
    sync(tmp_path, uri)
    rounds = collect(suite, uri).rounds
    assert rounds["loss"].tolist() == [1.0, 0.5]
    assert rounds["cohort"].tolist() == ["0 1", "0 1"]
    assert rounds["bytes_up"].tolist() == [400, 400]
    assert rounds["diagnostics/kl"].tolist() == [2.0, 4.0]


def test_a_cell_shown_in_several_settings_has_rows_in_each(tmp_path: Path, uri: str) -> None:
    suite = Suite(
        "twice", "", BACKBONE, (0,), (a_setting("m=1", ("fedvpt",)), a_setting("m=1", ("fedvpt",), table="V"))
    )
    done_folder(tmp_path, suite.cells()[0], [[0.5, 0.9], [0.3, 0.7]])
    sync(tmp_path, uri)
    records = collect(suite, uri).records
    assert records.groupby("column")["accuracy"].sum().tolist() == pytest.approx([2.4, 2.4])
    assert records.groupby("column")["table"].first().tolist() == ["Feature shift", "V"]


def test_columns_are_those_of_the_results(tmp_path: Path, uri: str) -> None:
    suite = every_kind()
    run_all(suite, uri, tmp_path)
    keys = ["column", "kind", "setting", "row", "title", "cell", "seed"]
    collected = collect(suite, uri)
    places = collected.records[keys].drop_duplicates()
    assert sorted(places.values.tolist()) == sorted(collected.results[keys].values.tolist())


def test_a_hash_of_digits_stays_text(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    folder = done_folder(tmp_path, suite.cells()[0])
    text = (folder / "records.csv").read_text()
    (folder / "records.csv").write_text(text.replace("0123456789abcdef", "0000000000001e10"))
    finish(folder, json.loads((folder / "summary.json").read_text()))
    sync(tmp_path, uri)
    assert collect(suite, uri).records["partition"].unique().tolist() == ["0000000000001e10"]


def test_unfinished_and_failed_cells_have_no_rows(tmp_path: Path, uri: str) -> None:
    suite = a_suite()
    Tracker(uri, tmp_path).failed(suite.cells()[0], "it broke")
    collected = collect(suite, uri)
    records, rounds = collected.records, collected.rounds
    assert records.empty
    assert rounds.empty
    assert {"table", "column", "row", "seed", "accuracy", "samples"} <= set(records)
    assert {"table", "column", "row", "seed", "loss", "bytes_up"} <= set(rounds)


def test_lost_artifacts_cost_one_warning(tmp_path: Path, uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    suite = a_suite()
    run_all(suite, uri, tmp_path)
    for file in tmp_path.glob("mlartifacts/**/records.csv"):
        file.unlink()
    collected = collect(suite, uri)
    assert collected.records.empty
    assert len(collected.rounds) == 4
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: records.csv of 2 runs cannot be read")
