import os
import pickle
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from timm.layers import resample_abs_pos_embed
from torch import Tensor

from fedprompt.backbones import weights
from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.weights import backbone_spec, load_backbone
from fedprompt.core.errors import UserError

MICRO, TINY = "micro-vit", "vit_tiny_patch16_224"


def random_micro(**options: Any) -> FrozenViT:
    return load_backbone(backbone_spec(MICRO, "random", **options))


@cache
def _shapes() -> dict[str, torch.Size]:
    return {name: value.shape for name, value in random_micro().vit.state_dict().items()}


def trained_state() -> dict[str, Tensor]:
    """A state of micro-vit's shapes in which no two numbers are alike."""
    rng = torch.Generator().manual_seed(5)
    return {name: torch.randn(shape, generator=rng) for name, shape in _shapes().items()}


def load(path: Path, **options: Any) -> FrozenViT:
    return load_backbone(backbone_spec(MICRO, str(path), **options), str(path))


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    return str(caught.value)


def google_layout(state: dict[str, Tensor], heads: int = 4) -> dict[str, np.ndarray]:
    """The arrays of a Google checkpoint (.npz): kernels are (in, out), attention kernels split by heads."""
    arrays = {
        "cls": state["cls_token"],
        "embedding/kernel": state["patch_embed.proj.weight"].permute(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
    }
    width = state["norm.weight"].shape[0]
    for index in range(1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))):
        old, new = f"blocks.{index}.", f"Transformer/encoderblock_{index}/"
        for ours, theirs in (("norm1", "LayerNorm_0"), ("norm2", "LayerNorm_2")):
            arrays[f"{new}{theirs}/scale"] = state[f"{old}{ours}.weight"]
            arrays[f"{new}{theirs}/bias"] = state[f"{old}{ours}.bias"]
        attention = f"{new}MultiHeadDotProductAttention_1/"
        for part, name in enumerate(("query", "key", "value")):
            rows = slice(part * width, (part + 1) * width)
            arrays[f"{attention}{name}/kernel"] = state[f"{old}attn.qkv.weight"][rows].T.unflatten(1, (heads, -1))
            arrays[f"{attention}{name}/bias"] = state[f"{old}attn.qkv.bias"][rows].unflatten(0, (heads, -1))
        arrays[f"{attention}out/kernel"] = state[f"{old}attn.proj.weight"].T.unflatten(0, (heads, -1))
        arrays[f"{attention}out/bias"] = state[f"{old}attn.proj.bias"]
        for layer in (0, 1):
            arrays[f"{new}MlpBlock_3/Dense_{layer}/kernel"] = state[f"{old}mlp.fc{layer + 1}.weight"].T
            arrays[f"{new}MlpBlock_3/Dense_{layer}/bias"] = state[f"{old}mlp.fc{layer + 1}.bias"]
    return {name: array.numpy() for name, array in arrays.items()}


def save(state: dict[str, Tensor], path: Path) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **google_layout(state))
    elif path.suffix == ".safetensors":
        safetensors.torch.save_file(state, path)
    else:
        torch.save(state, path)
    return path


# -- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".npz"])
def test_every_tensor_of_a_file_is_loaded(suffix: str, tmp_path: Path) -> None:
    state = trained_state()
    loaded = load(save(state, tmp_path / f"vit{suffix}")).vit.state_dict()
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], state[name]) for name in state)


@pytest.mark.parametrize("key", ["model", "state_dict"])
def test_a_training_checkpoint_with_a_class_head_is_loaded(key: str, tmp_path: Path) -> None:
    state = trained_state()
    head = {"head.weight": torch.zeros(10, 96), "head.bias": torch.zeros(10)}
    torch.save({key: {**state, **head}, "epoch": 3}, tmp_path / "vit.pth")
    assert torch.equal(load(tmp_path / "vit.pth").vit.norm.weight, state["norm.weight"])


def test_positions_are_resampled_for_another_image_size(tmp_path: Path) -> None:
    state = trained_state()
    model = load(save(state, tmp_path / "vit.safetensors"), image_size=64)
    expected = resample_abs_pos_embed(state["pos_embed"], (8, 8), num_prefix_tokens=1)
    assert torch.equal(model.vit.pos_embed, expected)
    assert model.cls(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)).shape == (1, 96)


def test_npz_positions_are_resampled_too(tmp_path: Path) -> None:
    model = load(save(trained_state(), tmp_path / "vit.npz"), image_size=64)
    assert model.vit.pos_embed.shape == (1, 65, 96)


def test_random_weights_are_one_backbone_and_leave_the_global_stream_alone() -> None:
    before = torch.get_rng_state()
    first, second = random_micro().vit.state_dict(), random_micro().vit.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.get_rng_state(), before)


def test_micro_vit_comes_with_the_suite() -> None:
    spec = backbone_spec(MICRO)
    model = load_backbone(spec)
    stored = safetensors.torch.load_file(weights.EMBEDDED)
    assert spec.weights.startswith("sha256:")
    assert torch.equal(model.vit.pos_embed, stored["pos_embed"])
    assert weights.EMBEDDED.stat().st_size <= 3 * 1024**2


def test_two_copies_of_a_file_are_the_same_weights(tmp_path: Path) -> None:
    path = save(trained_state(), tmp_path / "a.safetensors")
    shutil.copy(path, tmp_path / "b.safetensors")
    assert backbone_spec(MICRO, str(path)) == backbone_spec(MICRO, str(tmp_path / "b.safetensors"))


def test_a_file_that_changed_has_another_identity(tmp_path: Path) -> None:
    path = save(trained_state(), tmp_path / "a.safetensors")
    before = backbone_spec(MICRO, str(path))
    save({**trained_state(), "norm.bias": torch.zeros(96)}, path)
    assert backbone_spec(MICRO, str(path)) != before
    with pytest.raises(UserError, match="is asked for"):
        load_backbone(before, str(path))


def test_normalisation_is_that_of_the_weights() -> None:
    assert random_micro().mean.flatten().tolist() == [127.5] * 3
    clip = load_backbone(backbone_spec("vit_xsmall_patch16_clip_224", "random", image_size=32))
    assert clip.mean.flatten().tolist() == pytest.approx([255 * v for v in (0.48145466, 0.4578275, 0.40821073)])


# -- what is refused --------------------------------------------------------------------------------------------------


def test_missing_and_unexpected_keys_are_named(tmp_path: Path) -> None:
    state = trained_state()
    state["blocks.9.norm1.weight"] = state.pop("norm.weight")
    message = refused(save(state, tmp_path / "vit.safetensors"))
    assert "missing keys norm.weight" in message
    assert "unexpected keys blocks.9.norm1.weight" in message


def test_npz_missing_key_is_named(tmp_path: Path) -> None:
    arrays = google_layout(trained_state())
    del arrays["Transformer/encoderblock_2/LayerNorm_0/scale"]
    np.savez(tmp_path / "vit.npz", **arrays)
    assert "Transformer/encoderblock_2/LayerNorm_0/scale" in refused(tmp_path / "vit.npz")


def test_npz_of_a_deeper_model_is_not_cut_to_fit(tmp_path: Path) -> None:
    state = trained_state()
    extra = {name.replace("blocks.3", "blocks.4"): value for name, value in state.items() if "blocks.3" in name}
    assert "unexpected keys Transformer/encoderblock_4/" in refused(save({**state, **extra}, tmp_path / "vit.npz"))


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_wrong_shapes_are_named(suffix: str, tmp_path: Path) -> None:
    state = {**trained_state(), "norm.weight": torch.ones(64)}
    assert "96" in refused(save(state, tmp_path / f"vit{suffix}"))


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_another_patch_size_is_not_resampled_silently(suffix: str, tmp_path: Path) -> None:
    state = {**trained_state(), "patch_embed.proj.weight": torch.ones(96, 3, 16, 16)}
    refused(save(state, tmp_path / f"vit{suffix}"))


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".npz"])
@pytest.mark.parametrize("keep", [0, 10, 3000])
def test_a_truncated_file_is_refused(suffix: str, keep: int, tmp_path: Path) -> None:
    path = save(trained_state(), tmp_path / f"vit{suffix}")
    path.write_bytes(path.read_bytes()[:keep])
    refused(path)


class Payload:
    """A pickle that would run code when read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("write", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value, 2))])
def test_a_pickle_with_code_is_refused_and_not_run(write: Callable[[Any, Path], None], tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    write({"norm.weight": Payload(marker)}, tmp_path / "vit.pth")
    refused(tmp_path / "vit.pth")
    assert not marker.exists()


def test_a_file_that_holds_no_state_is_refused(tmp_path: Path) -> None:
    torch.save(torch.zeros(3), tmp_path / "vit.pth")
    refused(tmp_path / "vit.pth")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "vit.pth")


@pytest.mark.parametrize("value", ["vit.ckpt", "imagenet", ""])
def test_other_words_for_weights_are_refused(value: str) -> None:
    with pytest.raises(UserError, match="must be 'hub', 'random' or a file"):
        backbone_spec(MICRO, value)


@pytest.mark.parametrize("name", ["micro-vit", "micro-clip", "vit_tiny_patch16_224"])
def test_a_fifo_is_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(UserError, match=r"pipe\.safetensors' cannot be read: it is not a plain file"):
        backbone_spec(name, str(tmp_path / "pipe.safetensors"))


@pytest.mark.parametrize("name", ["hf-hub:timm/vit_tiny_patch16_224", "local-dir:/tmp", "hf_hub:x/y"])
def test_names_that_timm_would_fetch_are_unknown(name: str) -> None:
    with pytest.raises(UserError, match="unknown backbone"):
        backbone_spec(name, "random")


def test_an_unknown_backbone_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean 'micro-vit'"):
        backbone_spec("mico-vit")


@pytest.mark.parametrize(("size", "advice"), [(100, 96), (8, 16)])
def test_an_image_size_the_patches_do_not_fill_is_refused(size: int, advice: int) -> None:
    with pytest.raises(UserError, match=rf"image size {size} .* take {advice}\."):
        backbone_spec(TINY, "random", size)


def test_a_hub_that_cannot_be_reached_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    create = timm.create_model

    def offline(name: str, pretrained: bool = False, **options: Any) -> Any:
        if pretrained:
            raise ConnectionError("name or service not known\nretrying")
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(UserError, match=f"{TINY} cannot be fetched .*--weights FILE") as caught:
        load_backbone(backbone_spec(TINY))
    assert "\n" not in str(caught.value)
