"""Switches of speed change no byte of a cell's records, and of its last state the roundings, as stacks do."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.harness.conformance.lab import close, flat
from fedprompt.harness.running.cell import make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.journal import RECORDS, ROUNDS, Journal
from fedprompt.harness.running.run import run_cell
from fedprompt.methods import State

MICRO = BackboneSpec("micro-vit", "random", 16)
PARTITION = "dirichlet:alpha=1,clients=4,min_size=2"
PROTOCOL = {
    **{"rounds": 2, "epochs": 1, "batch_size": 8, "participation": 0.5, "last": 2, "eval_every": 1},
    **{"head": "local", "never_sampled": "as_is"},
}
METHODS = {"head-tune": {}, "fedvpt-d": {"length": 2}, "pfedbayespt": {"length": 2}, "sgpt": {}}
SWITCHES = {
    "no tokens kept": {"token_memory": 0},
    "tokens of some images kept": {"token_memory": 2**18},
    "every client counted": {"evaluate_all": True},
    "images on the device": {"image_memory": 2**30},
    "all of them": {"token_memory": 0, "evaluate_all": True, "image_memory": 2**30},
}


def outcome(method: str, source: str, out: Path, protocol: dict[str, Any], **switches: Any) -> tuple[bytes, State]:
    """(what the files say, all tensors of the last state)."""
    cell = make_cell(method, source, PARTITION, MICRO, 0, METHODS[method], PROTOCOL | protocol)
    folder = run_cell(cell, RunEnvironment(out, **switches))
    summary = json.loads((folder / "summary.json").read_text())
    journal = Journal(folder, cell, summary["partition_hash"], summary["data_checksum"])
    assert journal.state is not None
    return (folder / RECORDS).read_bytes() + (folder / ROUNDS).read_bytes(), flat(journal.state)


@pytest.mark.parametrize("method", METHODS)
def test_no_switch_changes_more_than_roundings(method: str, toy_source: str, tmp_path: Path) -> None:
    files, state = outcome(method, toy_source, tmp_path / "plain", {})
    for name, switches in SWITCHES.items():
        switched_files, switched_state = outcome(method, toy_source, tmp_path / name, {}, **switches)
        assert switched_files == files, name
        close(state, switched_state, name, tolerance=1e-7)  # on some CPUs a product's last bits depend on its size


@pytest.mark.parametrize("method", METHODS)
def test_stacks_change_roundings_only(method: str, toy_source: str, tmp_path: Path) -> None:
    _, alone = outcome(method, toy_source, tmp_path / "alone", {"stack": 1})
    _, together = outcome(method, toy_source, tmp_path / "together", {"stack": 4})
    close(alone, together, "stack 4 instead of 1", tolerance=1e-5)
