"""What is missing is noticed before anything runs, and said once."""

from pathlib import Path

import pytest
from support.run_folders import a_cell, new_store

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.core.errors import UserError
from fedprompt.harness.cli import main
from fedprompt.harness.cli._progress import check_inputs
from fedprompt.harness.running import cell as cell_module
from fedprompt.harness.running.cell import make_cell
from fedprompt.harness.running.environment import RunEnvironment

pytestmark = pytest.mark.usefixtures("shared_cache")


def test_a_missing_data_set_is_one_line_for_the_suite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new_store(tmp_path)
    args = ["--untuned", "--weights", "random", "--out", str(tmp_path), "--workers", "1"]  # tuned values add a line
    assert main(["bench", "cpu-cifar100", *args]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("fedprompt: cifar100 is not prepared; run: fedprompt prepare cifar100")


def test_cells_with_data_run_although_others_lack_theirs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = a_cell()
    away = [make_cell("fedvpt", "cifar100", "classes:s=10", there.backbone, seed) for seed in (0, 1)]
    outcomes = check_inputs([there, *away], RunEnvironment(tmp_path))
    assert outcomes.keys() == {cell.hash for cell in away}
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("not run: 2 cells of cifar100: cifar100 is not prepared")


def test_missing_hub_weights_are_noticed_before_any_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("timm.create_model", refuse)
    monkeypatch.setattr(cell_module, "dataset_names", lambda: ["nowhere"])
    cell = make_cell("fedvpt", "nowhere", "domains:m=1", BackboneSpec("vit_tiny_patch16_224", "hub", 224))
    with pytest.raises(UserError, match="cannot be fetched from the hub"):
        check_inputs([cell], RunEnvironment(tmp_path))


def test_levelled_classes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = make_cell("fedvpt", "glyph-100", "dirichlet:alpha=0.1,clients=5,shots=2", a_cell().backbone)
    assert check_inputs([cell], RunEnvironment(tmp_path)) == {}
    assert "the label skew falls from" in capsys.readouterr().err
