"""CLIP with a ResNet: the same embeddings as open_clip's, and what it cannot do."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedprompt.backbones.clip_resnet import FrozenResNetCLIP
from fedprompt.backbones.weights import BackboneSpec, backbone_spec, load_backbone, offered
from fedprompt.core.errors import UserError
from fedprompt.core.fields import build
from fedprompt.harness.running.cell import make_cell
from fedprompt.methods import Batch, Task, registry

open_clip = pytest.importorskip("open_clip")

from support.tiny_clip import pixels, rebuilt, tiny_open_clip  # noqa: E402

NOISE = torch.randint(80, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
IMAGES = NOISE + torch.tensor([0, 80, 170], dtype=torch.uint8)[:, None, None, None]


def tiny_resnet() -> Any:
    """A ResNet whose statistics of batch norm are not neutral either, so that images make a difference."""
    model = tiny_open_clip({"layers": (1, 1, 1, 1), "width": 8, "image_size": 64}, quick_gelu=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        for name, buffer in model.visual.named_buffers():
            if "running_mean" in name:
                buffer += 0.1 * torch.randn_like(buffer)
            elif "running_var" in name:
                buffer.mul_(0.02 * (1 + torch.rand_like(buffer)))
    return model


def test_image_features_are_open_clips() -> None:
    model = tiny_resnet()
    clip = rebuilt(model)
    assert isinstance(clip, FrozenResNetCLIP)
    expected = model.encode_image(pixels(clip, IMAGES), normalize=True)
    torch.testing.assert_close(clip.image_features(IMAGES), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(clip.project(clip.cls(IMAGES)), expected, atol=1e-5, rtol=0)
    assert expected.var(0).sum() > 1e-4  # they tell the images apart


def test_places_are_queries_of_the_same_attention() -> None:
    clip = rebuilt(tiny_resnet())
    rows = clip(IMAGES, rows=clip.tokens)
    torch.testing.assert_close(rows[:, :1], clip(IMAGES), atol=0, rtol=1e-4)  # row 0 is the pooled output
    spatial = clip.spatial(IMAGES)
    assert spatial.shape == (3, 4, 32)
    torch.testing.assert_close(spatial.norm(dim=-1), torch.ones(3, 4))


def test_statistics_of_batch_norm_never_change() -> None:
    clip = rebuilt(tiny_resnet()).train()
    before = {name: buffer.clone() for name, buffer in clip.named_buffers()}
    clip.image_features(IMAGES)
    assert all(torch.equal(buffer, before[name]) for name, buffer in clip.named_buffers())
    assert not any(parameter.requires_grad for parameter in clip.parameters())


def test_sizes_of_rn50() -> None:
    assert backbone_spec("clip:RN50-quickgelu", "openai") == BackboneSpec("clip:RN50-quickgelu", "hub:openai", 224)
    clip = load_backbone(BackboneSpec("clip:RN50-quickgelu", "random", 224), device="meta")
    assert isinstance(clip, FrozenResNetCLIP)
    assert (clip.width, clip.dim, clip.tokens, clip.text.width) == (1024, 1024, 50, 512)
    assert clip.cls(torch.zeros(2, 3, 224, 224, dtype=torch.uint8, device="meta")).shape == (2, 1024)


def test_methods_with_prompts_in_the_image_tower_are_refused_by_name() -> None:
    assert "prompts" not in offered("clip:RN50-quickgelu")
    spec = BackboneSpec("clip:RN50-quickgelu", "random", 224)
    with pytest.raises(UserError, match=r"'fedvpt' needs prompts, which backbone 'clip:RN50-quickgelu' does not"):
        make_cell("fedvpt", "cifar10", "disjoint:clients=2", spec)


def test_an_image_size_that_leaves_parts_of_places_is_refused() -> None:
    with pytest.raises(UserError, match="not a multiple of the patch size 32"):
        backbone_spec("clip:RN50-quickgelu", "random", 100)


@pytest.mark.parametrize("name", ["promptfl", "fedotp", "fedtpg", "fedclip"])
def test_text_methods_train_on_it(name: str) -> None:
    clip, cls = rebuilt(tiny_resnet()), registry().get(name)
    params = {"length": 2} if name != "fedclip" else {}
    method = cls(build(cls.Params, params, name), clip, Task(("cat", "great white shark"), torch.ones(1, 2)))
    assert clip.dim != clip.text.width
    theta = {**method.init_server(torch.Generator()), **method.init_personal(torch.Generator(), 0)}
    theta = {key: tensor[None].requires_grad_() for key, tensor in theta.items()}
    batch = Batch((0,), torch.tensor([[0, 1, 0]]), (3,), IMAGES, clip.cls(IMAGES)[None], (torch.Generator(),))
    batch = replace(batch, patches=clip.spatial(IMAGES))
    method.loss(theta, batch).sum().backward()  # type: ignore[no-untyped-call]
    assert all(tensor.grad is not None and tensor.grad.isfinite().all() for tensor in theta.values())
    assert method.predict(theta, batch).shape == (1, 3, 2)
