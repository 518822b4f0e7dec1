"""Scores of finished runs: what they agree with, what they do not depend on, and who may not write them."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.run_folders import done_folder, new_store

from fedprompt.core.errors import UserError
from fedprompt.harness import measure_clients, measure_rounds, read_records, read_scores, sync
from fedprompt.harness.conformance.toy import toy_dataset
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.run import RoundProgress, run_cell
from fedprompt.harness.running.session import run_cells
from fedprompt.methods import load_plugin

RULES = {"rounds": 4, "epochs": 1, "batch_size": 8, "participation": 0.5, "last": 2, "eval_every": 1}
PARTITION = "dirichlet:alpha=1,clients=4,min_size=2"
KEYS = ["cell", "round", "policy", "test_set", "samples", "unseen", "client", "participated"]
CHEAT = """
from fedprompt.methods.head_tune import HeadTune
import torch
class Cheat(HeadTune):
    name = "cheat-for-scores"
    def predict(self, theta, batch):
        return torch.nn.functional.one_hot(batch.labels, 4).float()
"""


def cell_like(toy_cell: Cell, method: str, partition: str = PARTITION, **protocol: Any) -> Cell:
    rules = {**RULES, **protocol}
    return make_cell(method, toy_cell.dataset, partition, toy_cell.backbone, 0, {}, rules)


def by_key(frame: pd.DataFrame, column: str) -> "pd.Series[float]":
    return frame.astype(dict.fromkeys(KEYS, str)).set_index(KEYS)[column].sort_index()


@pytest.mark.parametrize(
    ("method", "partition", "protocol"),
    [
        ("fedvpt", PARTITION, {"head": "global", "finetune_epochs": 1}),
        ("fedvpt", f"{PARTITION},unseen=half", {}),
        ("pfedbayespt", PARTITION, {"sweep": True}),
        ("head-tune", PARTITION, {"mask_local_classes": True}),
        ("head-tune", "classes:s=1,clients=2,novel=half", {}),
        ("head-tune", PARTITION, {"val_fraction": 0.3}),
    ],
)
def test_accuracy_from_scores_is_that_of_the_records(
    toy_cell: Cell, tmp_path: Path, method: str, partition: str, protocol: dict[str, Any]
) -> None:
    cell = cell_like(toy_cell, method, partition, **protocol)
    run_cell(cell, RunEnvironment(tmp_path))
    records, scores = read_records(tmp_path), read_scores(tmp_path)
    reported = records[records["round"].isin([3, 4]) & (records["total"] > 0)]
    measured = measure_clients(scores, "accuracy")
    assert len(measured) >= 6
    pd.testing.assert_series_equal(by_key(measured, "value"), by_key(reported, "accuracy"), check_names=False)
    assert by_key(measured, "images").tolist() == by_key(reported, "total").tolist()


def test_scores_name_the_image_and_its_class(toy_cell: Cell, tmp_path: Path) -> None:
    run_cell(toy_cell, RunEnvironment(tmp_path))
    scores, dataset = read_scores(tmp_path), toy_dataset()
    assert np.array_equal(dataset.labels[scores["image"]], scores["label"])
    assert dataset.is_test[scores["image"]].all()
    assert scores["true_probability"].where(scores["predicted"] == scores["label"]).dropna().between(0.25, 1).all()


def test_mlflow_has_the_same_scores(toy_cell: Cell, tmp_path: Path) -> None:
    run_cell(toy_cell, RunEnvironment(tmp_path))
    uri = new_store(tmp_path / "store")
    sync(tmp_path, uri)
    pd.testing.assert_frame_equal(read_scores(uri), read_scores(tmp_path))


def test_runs_without_scores_are_left_out(toy_cell: Cell, tmp_path: Path) -> None:
    folder = run_cell(toy_cell, RunEnvironment(tmp_path))
    done_folder(tmp_path, dataclasses.replace(toy_cell, seed=7))
    with pytest.warns(UserWarning, match=r"has no scores\.gz; left out"):
        scores = read_scores(tmp_path)
    assert set(scores["cell"]) == {folder.name}
    with pytest.warns(match="left out"), pytest.raises(UserError, match=r"no run .* has scores"):
        read_scores(tmp_path, [dataclasses.replace(toy_cell, seed=7)])


def test_calibration_is_measured_over_all_clients_of_a_round(toy_cell: Cell, tmp_path: Path) -> None:
    run_cell(toy_cell, RunEnvironment(tmp_path))
    scores = read_scores(tmp_path)
    rounds = measure_rounds(scores, "ece")
    assert rounds["round"].tolist() == [3, 4]
    assert rounds["images"].tolist() == [len(part) for _, part in scores.groupby("round")]
    assert rounds["value"].between(0, 1).all()


class StopError(Exception):
    pass


@pytest.mark.parametrize("stopped", [1, 2, 3])
def test_a_resumed_run_has_the_bytes_of_one_that_was_not_stopped(toy_cell: Cell, tmp_path: Path, stopped: int) -> None:
    """Also where most clients of a round have not changed since the last one, and need not be counted again."""
    cell = cell_like(toy_cell, "head-tune", head="local", participation=0.25, never_sampled="as_is")

    def stop(progress: RoundProgress) -> None:
        if progress.round == stopped:
            raise StopError

    whole = run_cell(cell, RunEnvironment(tmp_path / "a"))
    with pytest.raises(StopError):
        run_cell(cell, RunEnvironment(tmp_path / "b"), stop)
    resumed = run_cell(cell, RunEnvironment(tmp_path / "b"))
    assert (whole / "scores.gz").read_bytes() == (resumed / "scores.gz").read_bytes()
    everybody = run_cell(cell, RunEnvironment(tmp_path / "c", evaluate_all=True))
    assert (whole / "scores.gz").read_bytes() == (everybody / "scores.gz").read_bytes()


def test_the_cell_of_a_method_that_reads_labels_fails_with_one_line(toy_cell: Cell, tmp_path: Path) -> None:
    plugin = tmp_path / "cheat_for_scores.py"
    plugin.write_text(CHEAT)
    load_plugin(plugin)
    outcomes = run_cells([cell_like(toy_cell, "cheat-for-scores"), toy_cell], RunEnvironment(tmp_path))
    errors = {outcome.cell.method: outcome.error for outcome in outcomes}
    assert "batches for prediction have no labels; " in errors["cheat-for-scores"]
    assert "\n" not in errors["cheat-for-scores"]
    assert errors["fedvpt"] == ""
