from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from safetensors.torch import load_file, save_file

from fedprompt.backbones import pretraining
from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.micro_clip import ASSET, WordTokenizer, make_vocabulary
from fedprompt.backbones.weights import BackboneSpec, backbone_spec, load_backbone
from fedprompt.backbones.zero_shot import require_zero_shot, zero_shot_accuracy
from fedprompt.core.errors import UserError
from fedprompt.datasets import glyphs

IMAGES = torch.randint(256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def micro_clip() -> FrozenCLIP:
    clip = load_backbone(backbone_spec("micro-clip"))
    assert isinstance(clip, FrozenCLIP)
    return clip


# -- the model --------------------------------------------------------------------------------------------------------


def test_its_image_tower_is_micro_vit_bit_for_bit(micro_clip: FrozenCLIP) -> None:
    vit = load_backbone(backbone_spec("micro-vit"))
    assert torch.equal(micro_clip.cls(IMAGES), vit.cls(IMAGES))
    assert (micro_clip.depth, micro_clip.width, micro_clip.tokens) == (vit.depth, vit.width, vit.tokens)


def test_it_is_small() -> None:
    assert ASSET.stat().st_size < 4_000_000
    stored = load_file(ASSET)
    assert all(value.dtype == torch.float16 for name, value in stored.items() if name.startswith("text."))


def test_its_towers_meet_in_one_space(micro_clip: FrozenCLIP) -> None:
    images, spatial = micro_clip.image_features(IMAGES), micro_clip.spatial(IMAGES)
    context = torch.zeros(2, 16, micro_clip.text.width)
    texts = micro_clip.text_features(context, micro_clip.class_prompts(tuple("0123456789"), 16))
    assert (images.shape, spatial.shape, texts.shape) == ((3, 96), (3, 16, 96), (2, 10, 96))
    torch.testing.assert_close(spatial.norm(dim=-1), torch.ones(3, 16))
    assert 1 < micro_clip.logit_scale <= 100.01


def test_it_knows_digits_it_was_not_shown(micro_clip: FrozenCLIP, shared_cache: Path) -> None:
    data = glyphs.glyph_domains()
    accuracy = {
        style: zero_shot_accuracy(micro_clip, data, np.flatnonzero(data.is_test & (data.domains == place)))
        for place, style in enumerate(data.domain_names)
    }
    assert accuracy["print"] > 0.75
    assert np.mean(list(accuracy.values())) > 0.45
    require_zero_shot(micro_clip, float(np.mean(list(accuracy.values()))), data.num_classes)


def test_every_benchmark_class_takes_a_context_of_sixteen(micro_clip: FrozenCLIP) -> None:
    assert len(micro_clip.class_prompts(tuple(glyphs.HUNDRED.chars), 16)) == 100


def test_another_image_size_and_meta_work() -> None:
    clip = load_backbone(backbone_spec("micro-clip", image_size=64))
    assert clip.cls(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)).shape == (1, 96)
    flat = load_backbone(BackboneSpec("micro-clip", "random", 32), device="meta")
    assert flat.cls(torch.zeros(2, 3, 32, 32, dtype=torch.uint8, device="meta")).device.type == "meta"


def test_random_weights_know_nothing_but_the_words() -> None:
    one, two = (load_backbone(backbone_spec("micro-clip", "random")) for _ in range(2))
    assert isinstance(one, FrozenCLIP)
    assert one.weights == "random"
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert one.template_features(("1", "2")).shape == (2, 96)


# -- weights ----------------------------------------------------------------------------------------------------------


def test_a_file_of_ones_own_is_loaded(tmp_path: Path, micro_clip: FrozenCLIP) -> None:
    path = tmp_path / "copy.safetensors"
    path.write_bytes(ASSET.read_bytes())
    spec = backbone_spec("micro-clip", str(path))
    assert spec.weights == micro_clip.weights
    clip = load_backbone(spec, str(path))
    assert torch.equal(clip.cls(IMAGES), micro_clip.cls(IMAGES))


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a micro-clip file"):
        backbone_spec("micro-clip", str(pretraining.ASSET))
    (tmp_path / "cut.safetensors").write_bytes(ASSET.read_bytes()[:5000])
    with pytest.raises(UserError, match="not a micro-clip file"):
        backbone_spec("micro-clip", str(tmp_path / "cut.safetensors"))
    with pytest.raises(UserError, match="No such file"):
        backbone_spec("micro-clip", str(tmp_path / "none.safetensors"))
    with pytest.raises(UserError, match="not on a hub"):
        backbone_spec("micro-clip", "hub")


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    import safetensors

    with safetensors.safe_open(ASSET, "pt") as file:
        described = file.metadata()
    state = load_file(ASSET)
    del state["projection.weight"]
    path = tmp_path / "less.safetensors"
    save_file(state, path, described)
    with pytest.raises(UserError, match=r"do not fit micro-clip: .*projection\.weight"):
        load_backbone(backbone_spec("micro-clip", str(path)), str(path))


# -- words ------------------------------------------------------------------------------------------------------------


def test_known_words_are_one_token_and_others_are_spelled() -> None:
    tokenizer = WordTokenizer(make_vocabulary(["digit one"]))
    tokens = [tokenizer.vocabulary[i] for i in tokenizer("A digit, one.")]
    assert tokens == ["<start>", "+a", "digit", "one", ".", "<end>"]
    assert tokenizer.end == max(tokenizer.ids.values())
    assert tokenizer.ids["<pad>"] == 0


# -- the guard --------------------------------------------------------------------------------------------------------


def test_weights_near_chance_stop_the_run(micro_clip: FrozenCLIP) -> None:
    with pytest.raises(UserError, match=r"9\.8 % .* 30\.0 % .* labels and class names .* mean and std.*GELU"):
        require_zero_shot(micro_clip, 0.098, 10)
    require_zero_shot(micro_clip, 0.31, 10)


def test_few_classes_have_a_bar_that_can_be_reached(micro_clip: FrozenCLIP) -> None:
    require_zero_shot(micro_clip, 0.76, 2)
    with pytest.raises(UserError, match=r"75\.0 %"):
        require_zero_shot(micro_clip, 0.74, 2)


def test_random_weights_pass_the_guard() -> None:
    clip = load_backbone(backbone_spec("micro-clip", "random"))
    assert isinstance(clip, FrozenCLIP)
    require_zero_shot(clip, 0.0, 10)


@pytest.mark.parametrize(
    "described",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"vocabulary": []}',
        '{"vocabulary": 3, "templates": []}',
        '{"vocabulary": ["a"], "templates": ["{}"]}',
    ],
)
def test_a_file_that_describes_itself_oddly_is_one_line(described: str, tmp_path: Path) -> None:
    save_file(load_file(ASSET), tmp_path / "odd.safetensors", {"micro-clip": described})
    with pytest.raises(UserError, match="are not a micro-clip file"):
        backbone_spec("micro-clip", str(tmp_path / "odd.safetensors"))


def test_a_file_without_a_scale_is_one_line(tmp_path: Path) -> None:
    with safetensors.safe_open(ASSET, "pt") as file:
        metadata = file.metadata()
    state = {name: value for name, value in load_file(ASSET).items() if name != "logit_scale"}
    save_file(state, tmp_path / "odd.safetensors", metadata)
    with pytest.raises(UserError, match="are not a micro-clip file"):
        backbone_spec("micro-clip", str(tmp_path / "odd.safetensors"))


def test_a_context_of_each_class_is_what_all_classes_have_where_all_are_equal(micro_clip: FrozenCLIP) -> None:
    prompts = micro_clip.class_prompts(["cat", "zebra", "a"], 3)
    contexts = torch.randn(2, 3, 3, micro_clip.text.width, generator=torch.Generator().manual_seed(0))
    each = torch.stack([micro_clip.text_features(contexts[:, c], prompts)[:, c] for c in range(3)], dim=1)
    torch.testing.assert_close(micro_clip.text_features(contexts[:, :, None], prompts), each)
