"""Executors: the same results for any number of workers, and failures that stay alone."""

import dataclasses
from pathlib import Path

import pytest
from support.deadly_cells import silent

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.execution import execute
from fedprompt.harness.running.executors import attempt as attempt_module
from fedprompt.harness.running.run import RoundProgress


def test_one_failing_cell_fails_alone(toy_cell: Cell, tmp_path: Path) -> None:
    bad = dataclasses.replace(toy_cell, partition="classes:s=3,clients=5")  # 15 slots for 4 classes
    outcomes = list(execute([bad, toy_cell], RunEnvironment(tmp_path), silent))
    assert [bool(outcome.error) for outcome in outcomes] == [True, False]
    assert (outcomes[1].folder / "done").exists()
    assert not outcomes[0].folder.exists()


def test_a_diverged_cell_stops_alone_and_says_where(toy_cell: Cell, tmp_path: Path) -> None:
    diverging = dataclasses.replace(toy_cell, params={**toy_cell.params, "lr": 1e38})
    for _ in range(2):  # a second call meets the same end, not a damaged folder
        first, second = execute([diverging, toy_cell], RunEnvironment(tmp_path), silent)
        assert first.error.startswith("diverged in round 1, client ")
        assert not (first.folder / "done").exists()
        assert not second.error


def test_a_failure_that_cannot_be_noted_stops_nothing(
    toy_cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(attempt_module, "note_failure", full)
    diverging = dataclasses.replace(toy_cell, params={**toy_cell.params, "lr": 1e38})
    first, second = execute([diverging, toy_cell], RunEnvironment(tmp_path), silent)
    assert first.error.endswith(f"(nor can this be noted in {first.folder}: No space left on device)")
    assert not second.error


def test_a_crash_inside_training_is_kept_as_the_reason(
    toy_cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedprompt.methods.fedvpt import FedVPT

    def explode(*_: object) -> None:
        raise RuntimeError("the prompt exploded")

    monkeypatch.setattr(FedVPT, "loss", explode)
    (outcome,) = execute([toy_cell], RunEnvironment(tmp_path), silent)
    assert outcome.error == "RuntimeError: the prompt exploded"
    assert "the prompt exploded" in (outcome.folder / "failed.json").read_text()


@pytest.mark.slow
def test_two_workers_give_the_bits_of_one(tmp_path: Path, shared_cache: Path) -> None:
    protocol = {"rounds": 2, "epochs": 1, "batch_size": 8}
    backbone = BackboneSpec("micro-vit", "random", 32)
    cells = [
        make_cell("fedvpt", "glyph-domains", "domains:m=1,shots=1", backbone, seed, {"length": 1}, protocol)
        for seed in (0, 1, 2)
    ]
    progress_events: list[RoundProgress] = []
    one = {o.cell.hash: o.folder for o in execute(cells, RunEnvironment(tmp_path / "one"), silent, workers=1)}
    two = {
        o.cell.hash: o.folder
        for o in execute(cells, RunEnvironment(tmp_path / "two"), progress_events.append, workers=2)
    }
    for cell in cells:
        assert (one[cell.hash] / "records.csv").read_bytes() == (two[cell.hash] / "records.csv").read_bytes()
    assert sorted((p.cell, p.round) for p in progress_events) == sorted((c.hash, r) for c in cells for r in (1, 2))
