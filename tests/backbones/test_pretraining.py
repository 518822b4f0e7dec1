import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedprompt.backbones import pretraining as pretrain
from fedprompt.core.errors import UserError
from fedprompt.datasets import Dataset, glyphs


@pytest.fixture(scope="module")
def toy() -> Dataset:
    """A dark and a bright class in two styles: learnable in a few steps."""
    rng = np.random.default_rng(0)
    labels = np.arange(64) % 2
    images = (rng.integers(0, 60, (64, 3, 32, 32)) + 180 * labels[:, None, None, None]).astype(np.uint8)
    return Dataset(
        "toy", images, labels, np.arange(64) // 2 % 2, np.arange(64) >= 48, ("dark", "bright"), ("a", "b"), "none"
    )


def test_same_seed_same_weights_other_seed_other_weights(tmp_path: Path, toy: Dataset) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        pretrain.pretrain(tmp_path / name, steps=2, seed=seed, batch=4, data=toy, probes=False)
    one, two, three = (load_file(tmp_path / name) for name in "abc")
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert not torch.equal(one["cls_token"], three["cls_token"])


def test_training_learns_a_toy_task(tmp_path: Path, toy: Dataset) -> None:
    record = pretrain.pretrain(tmp_path / "w", steps=20, batch=16, warmup=1, data=toy, probes=False)
    assert record["held_out_accuracy"] == {"a": 1.0, "b": 1.0}


def test_global_random_state_is_left_alone(tmp_path: Path, toy: Dataset) -> None:
    before = torch.get_rng_state()
    pretrain.pretrain(tmp_path / "w", steps=1, batch=4, data=toy, probes=False)
    assert torch.equal(before, torch.get_rng_state())


def test_the_record_is_written_beside_the_weights(tmp_path: Path, toy: Dataset) -> None:
    record = pretrain.pretrain(tmp_path / "w.safetensors", steps=1, batch=4, data=toy, probes=False)
    assert json.loads((tmp_path / "w.json").read_text()) == record
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.json", "w.safetensors"]


def test_bad_input_is_refused_before_the_work(tmp_path: Path, toy: Dataset) -> None:
    with pytest.raises(UserError, match="at least 1"):
        pretrain.pretrain(tmp_path / "w", steps=0, data=toy)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        pretrain.pretrain(tmp_path / "file" / "w", data=toy)


def test_rate_warms_up_and_ends_at_zero() -> None:
    assert [round(pretrain.rate(step, 12, 2), 3) for step in (0, 1, 2, 7, 12)] == [0.5, 1.0, 1.0, 0.5, 0.0]


def test_shift_moves_by_at_most_two_pixels_and_repeats_the_border() -> None:
    ramp = torch.arange(8.0).expand(500, 3, 8, 8)
    moved = pretrain.shift(ramp, torch.Generator().manual_seed(0))
    assert sorted({int(value) for value in moved[:, 0, 0, 4]}) == [2, 3, 4, 5, 6]
    assert (moved[:, 0, 0, 0].min(), moved[:, 0, 0, -1].max()) == (0, 7)


def test_a_linear_probe_separates_what_is_separable(toy: Dataset) -> None:
    assert pretrain.linear_probe(pretrain.new_model(0), toy, np.ones(64, bool)) == 1.0


def test_committed_weights_fit_the_architecture_and_have_no_head() -> None:
    stored = load_file(pretrain.ASSET)
    pretrain.new_model(0).load_state_dict(stored, strict=True)
    assert not any(name.startswith("head.") for name in stored)
    assert sum(value.numel() for value in stored.values()) < 1_000_000
    assert pretrain.ASSET.stat().st_size < 3_000_000


def test_committed_weights_saw_some_styles_only_and_beat_random_ones() -> None:
    record = json.loads(pretrain.ASSET.with_suffix(".json").read_text())
    assert tuple(record["held_out_accuracy"]) == glyphs.SEEN_STYLES
    assert set(glyphs.SEEN_STYLES) < set(glyphs.DOMAINS.styles)
    assert record["probe"]["trained"]["mean of styles"] > 2 * record["probe"]["random"]["mean of styles"]
