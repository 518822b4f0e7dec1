import builtins
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.backbone import FrozenViT, shallow
from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.open_clip_towers import file_is_quick, rebuild
from fedprompt.backbones.weights import BackboneSpec, backbone_spec, load_backbone
from fedprompt.core.errors import UserError

open_clip = pytest.importorskip("open_clip")
safetensors_torch = pytest.importorskip("safetensors.torch")

from support.tiny_clip import IMAGES, TEXT, VISION, pixels, rebuilt, tiny_open_clip  # noqa: E402

TINY = "clip:fedprompt-tiny"


@pytest.fixture(scope="module", autouse=True)
def tiny_configs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """open_clip knows the tiny model under a name, with either GELU."""
    folder = tmp_path_factory.mktemp("configs")
    config = {"embed_dim": 32, "vision_cfg": VISION, "text_cfg": TEXT}
    (folder / "fedprompt-tiny.json").write_text(json.dumps(config))
    (folder / "fedprompt-tiny-quickgelu.json").write_text(json.dumps({**config, "quick_gelu": True}))
    open_clip.add_model_config(folder)


def save(path: Path, state: dict[str, Tensor] | None = None) -> Path:
    state = tiny_open_clip().state_dict() if state is None else state
    if path.suffix == ".safetensors":
        safetensors_torch.save_file(state, path)
    else:
        torch.save(state, path)
    return path


def load(path: Path, name: str = TINY) -> FrozenCLIP:
    model = load_backbone(backbone_spec(name, str(path)), str(path))
    assert isinstance(model, FrozenCLIP)
    return model


# -- the image tower --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vision", [{}, {"no_ln_pre": True}, {"ls_init_value": 0.5}, {"patch_dropout": 0.5}])
@pytest.mark.parametrize("quick_gelu", [False, True])
def test_image_features_are_open_clips(vision: dict[str, Any], quick_gelu: bool) -> None:
    model = tiny_open_clip(vision, quick_gelu=quick_gelu)
    clip = rebuilt(model)
    expected = model.encode_image(pixels(clip), normalize=True)
    torch.testing.assert_close(clip.image_features(IMAGES), expected, atol=1e-5, rtol=0)


def test_spatial_tokens_are_open_clips() -> None:
    model = tiny_open_clip()
    clip = rebuilt(model)
    found = model.visual.forward_intermediates(pixels(clip), indices=1, normalize_intermediates=True, output_fmt="NLC")[
        "image_intermediates"
    ][0]
    expected = F.normalize(found @ model.visual.proj, dim=-1)
    assert expected.shape == (3, 16, 32)
    torch.testing.assert_close(clip.spatial(IMAGES), expected, atol=1e-5, rtol=0)


def test_visual_prompts_may_go_before_the_first_norm() -> None:
    """Appended before ln_pre as in MaPLe, or normalised by the method and inserted after CLS: one and the same."""
    model = tiny_open_clip()
    clip, visual = rebuilt(model), model.visual
    prompt = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(2))
    patches = visual.conv1(pixels(clip)).flatten(2).transpose(1, 2)
    tokens = torch.cat([visual.class_embedding.expand(3, 1, -1), patches], 1) + visual.positional_embedding
    tokens = visual.transformer(visual.ln_pre(torch.cat([tokens, prompt], 1)))
    expected = F.normalize(visual.ln_post(tokens[:, 0]) @ visual.proj, dim=-1)
    found = clip.image_features(IMAGES, shallow(clip.vit.norm_pre(prompt)))
    assert (expected - clip.image_features(IMAGES)).abs().max() > 1e-2
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_cached_cls_features_are_projected_to_image_features() -> None:
    clip = rebuilt(tiny_open_clip())
    torch.testing.assert_close(clip.project(clip.cls(IMAGES)), clip.image_features(IMAGES))


def test_a_vit_method_finds_what_it_finds_in_a_vit() -> None:
    clip = rebuilt(tiny_open_clip())
    assert isinstance(clip, FrozenViT)
    assert clip.offers == {"images", "features", "prompts", "layer inputs", "text", "spatial tokens"}
    assert (clip.depth, clip.width, clip.tokens, clip.patch_size, clip.image_size) == (3, 64, 17, 8, 32)
    assert clip.layer_inputs(IMAGES).shape == (3, 3, 17, 64)
    assert clip(IMAGES, rows=4, stop=2).shape == (3, 4, 64)
    assert (clip.mean.flatten() / 255).tolist() == pytest.approx([0.48145466, 0.4578275, 0.40821073])


def test_everything_is_frozen_and_stays_in_evaluation_mode() -> None:
    clip = rebuilt(tiny_open_clip({"patch_dropout": 0.5})).train()
    assert not any(parameter.requires_grad for parameter in clip.parameters())
    assert not any(module.training for module in clip.modules())


def test_the_logit_scale_is_the_models() -> None:
    model = tiny_open_clip()
    assert rebuilt(model).logit_scale == pytest.approx(model.logit_scale.exp().item())


@pytest.mark.parametrize(
    ("vision", "text", "why"),
    [
        ({"pool_type": "avg"}, {}, "class token"),
        ({"attentional_pool": True, "attn_pooler_heads": 4}, {}, "class token"),
        ({"qk_norm": True}, {}, "plain pre-norm blocks"),
        ({}, {"no_causal_mask": True}, "without a causal mask"),
        ({}, {"pool_type": "last"}, "end-of-text token"),
    ],
)
def test_towers_that_cannot_be_rebuilt_are_refused(vision: dict[str, Any], text: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=f"{why}.*use one such as ViT-B-16"):
        rebuilt(tiny_open_clip(vision, text))


@pytest.mark.slow
def test_vit_b_16_shapes_are_open_clips() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = open_clip.create_model("ViT-B-16-quickgelu", load_weights=False).eval().requires_grad_(False)
    clip = rebuild(model, "ViT-B-16-quickgelu", "random", rebuilt(tiny_open_clip()).text.tokenizer)
    images = torch.randint(256, (2, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    names = ["cat", "great white shark"]
    texts = open_clip.tokenize([f"a photo of a {name}." for name in names])
    expected = model.encode_image(pixels(clip, images), normalize=True)
    torch.testing.assert_close(clip.image_features(images), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        clip.template_features(names), model.encode_text(texts, normalize=True), atol=1e-5, rtol=0
    )
    assert (clip.width, clip.text.width, clip.dim, clip.spatial(images).shape) == (768, 512, 512, (2, 196, 512))


def test_sizes_are_known_without_weights() -> None:
    clip = load_backbone(BackboneSpec("clip:ViT-B-16", "random", 224), device="meta")
    assert isinstance(clip, FrozenCLIP)
    context = torch.zeros(2, 16, 512, device="meta")
    features = clip.text_features(context, clip.class_prompts(["cat", "dog"], 16))
    assert (features.shape, features.device.type) == ((2, 2, 512), "meta")
    assert clip.image_features(torch.zeros(3, 3, 224, 224, dtype=torch.uint8, device="meta")).shape == (3, 512)


# -- weights ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_local_file_is_loaded(suffix: str, tmp_path: Path) -> None:
    clip, expected = load(save(tmp_path / f"tiny{suffix}")), rebuilt(tiny_open_clip())
    assert clip.weights.startswith("sha256:")
    torch.testing.assert_close(clip.image_features(IMAGES), expected.image_features(IMAGES))
    torch.testing.assert_close(clip.template_features(["cat"]), expected.template_features(["cat"]))


def test_half_precision_files_are_computed_in_single_precision(tmp_path: Path) -> None:
    state = {name: value.half() for name, value in tiny_open_clip().state_dict().items()}
    clip = load(save(tmp_path / "tiny.safetensors", state))
    assert {parameter.dtype for parameter in clip.parameters()} == {torch.float32}


def test_another_image_size_resamples_positions(tmp_path: Path) -> None:
    path = str(save(tmp_path / "tiny.safetensors"))
    clip = load_backbone(backbone_spec(TINY, path, image_size=64), path)
    assert clip.cls(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)).shape == (1, 64)


def test_random_weights_are_one_model() -> None:
    one, two = (load_backbone(backbone_spec(TINY, "random")) for _ in range(2))
    assert one.weights == "random"
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_a_tag_is_recorded_as_such() -> None:
    assert backbone_spec("clip:ViT-B-16", "laion2b_s34b_b88k").weights == "hub:laion2b_s34b_b88k"


def test_the_gelu_of_a_tag_must_be_the_models() -> None:
    with pytest.raises(UserError, match=r"'openai' was trained with quick GELU.*use the model ViT-B-16-quickgelu"):
        load_backbone(BackboneSpec("clip:ViT-B-16", "hub:openai", 224))


def mixed_precision(path: Path) -> Path:
    state = tiny_open_clip().state_dict()
    state["visual.conv1.weight"] = state["visual.conv1.weight"].half()
    return save(path, state)


def configured(path: Path) -> Path:
    (path.parent / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"quick_gelu": True}}))
    return save(path)


@pytest.mark.parametrize(
    "write",
    [
        mixed_precision,
        configured,
        lambda path: save(path, {**tiny_open_clip().state_dict(), "input_resolution": torch.tensor(32)}),
        lambda path: save(path.with_name("ViT-openai.safetensors")),
    ],
)
def test_a_file_of_openais_needs_a_quick_gelu_model(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.safetensors")
    assert file_is_quick(path) is True
    with pytest.raises(UserError, match="use the model fedprompt-tiny-quickgelu"):
        load(path)


def test_a_file_with_signs_of_openai_is_loaded_into_the_right_model(tmp_path: Path) -> None:
    clip = load(mixed_precision(tmp_path / "tiny.safetensors"), f"{TINY}-quickgelu")
    assert type(clip.vit.blocks[0].mlp.act).__name__ == "QuickGELU"
    assert type(clip.text.blocks[0].mlp.act).__name__ == "QuickGELU"


def test_a_file_that_does_not_tell_is_taken_at_the_models_word(tmp_path: Path) -> None:
    path = save(tmp_path / "tiny.safetensors")
    assert file_is_quick(path) is None
    assert type(load(path).vit.blocks[0].mlp.act).__name__ == "GELU"


class Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (Path.touch, (self.marker,))


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path) -> None:
    torch.save({"logit_scale": Payload(tmp_path / "ran")}, tmp_path / "tiny.pt")
    with pytest.raises(UserError, match=r"convert it to \.safetensors once"):
        load(tmp_path / "tiny.pt")
    assert not (tmp_path / "ran").exists()


def test_a_file_of_another_model_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path / "other.safetensors", {"weight": torch.zeros(2)})
    with pytest.raises(UserError, match="cannot take the weights") as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("weights", [None, "imagenet", "hub"])
def test_weights_must_be_named(weights: str | None) -> None:
    with pytest.raises(UserError, match=r"must be 'random', a file ending in .*laion2b_s34b_b88k"):
        backbone_spec("clip:ViT-B-16", weights)


def test_an_unknown_model_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="Did you mean 'ViT-B-16'"):
        backbone_spec("clip:ViT-B16", "random")


def test_an_image_size_the_patches_do_not_fill_is_refused() -> None:
    with pytest.raises(UserError, match=r"image size 30 .* take 24\."):
        backbone_spec(TINY, "random", 30)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("weights", ["random", "openai", None])
@pytest.mark.parametrize(
    "name", ["hf-hub:timm/ViT-B-16-SigLIP", "local-dir:{folder}", "{folder}/open_clip_config.json"]
)
def test_only_models_that_open_clip_lists(name: str, weights: str | None, tmp_path: Path) -> None:
    """open_clip would fetch the first and build whatever a stranger's folder asks for."""
    config = {"model_cfg": {"embed_dim": 32, "vision_cfg": VISION, "text_cfg": TEXT}, "preprocess_cfg": {}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"unknown open_clip model '(hf-hub|local-dir|/)"):
        backbone_spec("clip:" + name.format(folder=tmp_path), weights)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", ["roberta-ViT-B-32", "nllb-clip-base", "ViT-B-16-SigLIP", "ViT-H-14-worldwide"])
def test_models_whose_text_side_must_be_fetched_are_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"needs '.*' of another library for its text; use one such as ViT-B-16"):
        backbone_spec(f"clip:{name}", "random")


@pytest.mark.usefixtures("no_network")
def test_nothing_is_fetched_until_weights_are_loaded() -> None:
    spec = backbone_spec("clip:ViT-B-16-quickgelu", "openai")
    assert spec == BackboneSpec("clip:ViT-B-16-quickgelu", "hub:openai", 224)
    load_backbone(BackboneSpec(spec.name, "random", 224), device="meta")  # what a plan does


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000])
def test_a_damaged_configuration_next_to_a_file_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "open_clip_config.json").write_text(text)
    with pytest.raises(UserError, match=r"open_clip_config\.json cannot be read: it "):
        file_is_quick(save(tmp_path / "tiny.safetensors"))


def test_without_open_clip_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **options: Any) -> Any:
        if name == "open_clip":
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.delitem(sys.modules, "open_clip")
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(UserError, match=r"pip install -e '\.\[clip\]'"):
        backbone_spec("clip:ViT-B-16", "random")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_torchscript_archive_is_refused_with_advice(tmp_path: Path) -> None:
    """OpenAI's own .pt files are such archives."""
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(tmp_path / "tiny.pt"))
    with pytest.raises(UserError, match=r"convert it to \.safetensors once, as docs/clip\.md shows"):
        load(tmp_path / "tiny.pt")
