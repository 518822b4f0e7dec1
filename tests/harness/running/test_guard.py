"""Text methods train only on towers that can read the data; ViT methods do not ask."""

from pathlib import Path

import pytest
import safetensors
import safetensors.torch

from fedprompt.backbones.micro_clip import ASSET, MICRO_CLIP
from fedprompt.backbones.weights import backbone_spec
from fedprompt.core.errors import UserError
from fedprompt.harness.running import run as run_module
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.run import assemble, run_cell

DATA = ("glyph-domains", "domains:m=6,shots=1,test_shots=1")
SHORT = {"rounds": 1, "epochs": 1, "last": 1}


@pytest.fixture(autouse=True)
def forgotten() -> None:
    run_module._check_zero_shot.cache_clear()


@pytest.fixture
def upside_down(tmp_path: Path) -> str:
    """micro-clip with a text projection of the wrong sign: what is near becomes far."""
    tensors = safetensors.torch.load_file(ASSET)
    tensors["text.projection.weight"] = -tensors["text.projection.weight"]
    with safetensors.safe_open(ASSET, "pt") as file:
        metadata = file.metadata()
    assert MICRO_CLIP in metadata
    safetensors.torch.save_file(tensors, tmp_path / "wrong.safetensors", metadata)
    return str(tmp_path / "wrong.safetensors")


def cell(method: str, weights: str | None = None) -> Cell:
    return make_cell(method, *DATA, backbone_spec("micro-clip", weights), protocol=SHORT)


def test_towers_that_cannot_read_the_data_stop_the_run(upside_down: str, tmp_path: Path) -> None:
    environment = RunEnvironment(tmp_path / "runs", weights=upside_down)
    with pytest.raises(UserError, match=r"micro-clip classifies \d+\.\d % of the images without training"):
        run_cell(cell("promptfl", upside_down), environment)
    assert not (tmp_path / "runs").exists()


def test_methods_without_text_are_not_asked(upside_down: str, tmp_path: Path) -> None:
    assemble(cell("head-tune", upside_down), RunEnvironment(tmp_path, weights=upside_down))


def test_the_guard_looks_once_for_all_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(run_module, "zero_shot_accuracy", lambda *args: looks.append(len(args[2])) or 0.9)
    for method in ("zs-clip", "promptfl"):
        assemble(cell(method), RunEnvironment(tmp_path))
    assert len(looks) == 1
    assert 200 < looks[0] < 600


def test_random_weights_are_asked_for_by_name_and_pass(tmp_path: Path) -> None:
    assemble(cell("zs-clip", "random"), RunEnvironment(tmp_path))
