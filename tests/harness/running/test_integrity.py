"""A plugin that changes what others compute with fails alone, and no built-in cell computes with it."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.deadly_cells import silent

from fedprompt.backbones.weights import backbone_spec
from fedprompt.core.errors import UserError
from fedprompt.harness.cli import main
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.execution import execute
from fedprompt.harness.running.folder import is_done, run_folder
from fedprompt.harness.running.session import run_cells
from fedprompt.methods import load_plugin

PLUGIN = """
import random
import numpy as np
import torch
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.head_tune import HeadTune

class Patches(FedVPT):
    name, order = "patches", 900
    def loss(self, theta, batch):
        HeadTune.predict = lambda self, theta, batch: torch.zeros(len(batch.images), self.num_classes)
        return super().loss(theta, batch)

class Scales(FedVPT):
    name, order = "scales", 901
    def loss(self, theta, batch):
        with torch.no_grad():
            for weight in self.backbone.parameters():
                weight.mul_(0.5)
        return super().loss(theta, batch)

class Seeds(FedVPT):
    name, order = "seeds", 902
    def loss(self, theta, batch):
        torch.manual_seed(0)
        return super().loss(theta, batch)

class Honest(FedVPT):
    name, order = "honest", 903
"""
PROTOCOL = {"rounds": 2, "last": 1, "epochs": 1, "eval_every": 1, "batch_size": 8}
BUILT_IN = ("head-tune", "fedvpt")


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    file = tmp_path / "changes_all.py"
    file.write_text(PLUGIN)
    load_plugin(file)
    return str(file)


def cells(names: Sequence[str]) -> list[Cell]:
    backbone = backbone_spec("micro-vit", None, None)
    return [make_cell(name, "glyph-domains", "domains:m=1,shots=1", backbone, protocol=PROTOCOL) for name in names]


def records(out: Path, cell: Cell) -> bytes:
    return (run_folder(out, cell) / "records.csv").read_bytes()


@pytest.mark.parametrize("workers", [1, 2])
def test_no_built_in_cell_computes_with_what_a_plugin_changed(
    workers: int, plugin: str, tmp_path: Path, shared_cache: Path
) -> None:
    plain = cells(BUILT_IN)
    run_cells(plain, RunEnvironment(tmp_path / "plain"))
    mixed = cells(("patches", "scales", "seeds", "honest", *BUILT_IN))
    outcomes = execute(mixed, RunEnvironment(tmp_path / "mixed", plugins=(plugin,)), silent, workers)
    errors = {outcome.cell.method: outcome.error or "" for outcome in outcomes}
    assert "replaced fedprompt.methods.head_tune.HeadTune.predict" in errors["patches"]
    assert "changed the weights of the frozen backbone" in errors["scales"]
    assert "seeded PyTorch's global generator" in errors["seeds"]
    assert [errors[name] for name in ("honest", *BUILT_IN)] == ["", "", ""]
    for cell in plain:
        assert records(tmp_path / "mixed", cell) == records(tmp_path / "plain", cell)


def test_rounds_of_a_plugin_that_changes_weights_are_not_resumed(
    plugin: str, tmp_path: Path, shared_cache: Path
) -> None:
    environment = RunEnvironment(tmp_path / "out", plugins=(plugin,))
    [cell] = cells(("scales",))
    for _ in range(2):
        [outcome] = execute([cell], environment, silent)
        assert "changed the weights" in (outcome.error or "")
        assert not is_done(run_folder(environment.out, cell))
        assert not (run_folder(environment.out, cell) / "checkpoint.journal").exists()


def test_two_plugins_of_one_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.py").write_text(PLUGIN)
        words += ["--plugin", str(tmp_path / folder / "mine.py")]
    assert main(["methods", *words]) == 2
    assert "two plugins are called 'mine.py'" in capsys.readouterr().err


def test_two_plugins_with_a_method_of_one_name_are_refused(tmp_path: Path) -> None:
    for stem in ("one_of_two", "two_of_two"):
        (tmp_path / f"{stem}.py").write_text(
            PLUGIN.replace('"honest"', '"honest-twice"').split("class Patches")[0]
            + ("class Honest(FedVPT):\n    name, order = 'honest-twice', 910\n")
        )
    load_plugin(tmp_path / "one_of_two.py")
    with pytest.raises(UserError, match="already registered"):
        load_plugin(tmp_path / "two_of_two.py")
