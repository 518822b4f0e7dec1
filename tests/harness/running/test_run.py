"""Cells whose partition keeps something out of training."""

import json
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.harness.conformance.toy import toy_clip
from fedprompt.harness.planning.tally import tally_cells
from fedprompt.harness.running import run as run_module
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.run import assemble, run_cell

MICRO = BackboneSpec("micro-vit", "random", 16)
PROTOCOL = {"rounds": 2, "epochs": 1, "batch_size": 8, "last": 1, "eval_every": 1}


def held_out_cell(source: str, partition: str, method: str = "fedvpt", backbone: BackboneSpec = MICRO) -> Cell:
    return make_cell(method, source, partition, backbone, 0, {}, PROTOCOL)


def run(cell: Cell, out: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    folder = run_cell(cell, RunEnvironment(out))
    return json.loads((folder / "summary.json").read_text()), pd.read_csv(folder / "records.csv")


def test_time_that_listeners_take_is_not_the_rounds(toy_source: str, tmp_path: Path) -> None:
    cell = held_out_cell(toy_source, "disjoint:clients=2", "head-tune")
    folder = run_cell(cell, RunEnvironment(tmp_path), report=lambda _: time.sleep(1))
    assert 0 < json.loads((folder / "summary.json").read_text())["seconds_per_round"] < 1


def test_only_base_classes_are_trained_and_the_head_is_theirs(toy_source: str, tmp_path: Path) -> None:
    cell = held_out_cell(toy_source, "disjoint:clients=2,novel=half")
    dataset, partition, federation = assemble(cell, RunEnvironment(tmp_path))
    assert federation.method.task.class_names == dataset.class_names[:2]
    assert federation.method.task.train_counts.shape == (2, 2)
    summary, records = run(cell, tmp_path)
    assert "novel_average" not in summary
    assert set(records[records["round"] == 1]["test_set"]) == {"local"}
    base = records[(records["round"] == 2) & (records["test_set"] == "base")]
    assert base.groupby("client")["total"].sum().tolist() == [len(partition.shared["base"])] * 2


def test_novel_classes_are_scored_by_their_names_alone(
    toy_source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = toy_clip()
    monkeypatch.setattr(run_module, "shared_backbone", lambda *_: clip)
    cell = held_out_cell(
        toy_source, "disjoint:clients=2,novel=half", "zs-clip", BackboneSpec("micro-clip", "random", 16)
    )
    dataset, partition, _ = assemble(cell, RunEnvironment(tmp_path))
    rows = partition.shared["novel"]
    names = clip.template_features(dataset.class_names[2:])
    answers = (clip.image_features(torch.from_numpy(dataset.images[rows])) @ names.T).argmax(1).numpy() + 2
    summary, records = run(cell, tmp_path)
    assert summary["novel_average"] == pytest.approx((answers == dataset.labels[rows]).mean())
    assert summary["novel_average"] > 0
    assert summary["harmonic_mean"] > 0
    assert set(records["test_set"]) == {"local", "base", "novel"}


def test_every_image_of_the_target_domain_is_tested(toy_source: str, tmp_path: Path) -> None:
    summary, records = run(held_out_cell(toy_source, "disjoint:clients=2,target=left"), tmp_path)
    target = records[records["test_set"] == "target"]
    assert set(target["domain"]) == {"left"}
    assert set(records[records["test_set"] == "local"]["domain"]) == {"right"}
    accuracies = target["correct"] / target["total"]
    assert summary["target_average"] == pytest.approx(accuracies.mean())


@pytest.mark.parametrize("partition", ["disjoint:clients=2,novel=half", "disjoint:clients=2,target=right"])
def test_a_plan_counts_the_images_that_all_clients_share(toy_source: str, tmp_path: Path, partition: str) -> None:
    cell = held_out_cell(toy_source, partition)
    dataset, _, _ = assemble(cell, RunEnvironment(tmp_path))
    _, records = run(cell, tmp_path)
    [tally] = tally_cells([cell], {toy_source: dataset})
    assert tally.images["evaluate"] == records["total"].sum()
