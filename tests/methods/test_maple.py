from typing import Any

import pytest
import torch

from fedprompt.backbones.backbone import shallow
from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.lab import ALL, first_rows
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.methods import Batch, State
from fedprompt.methods.maple import MaPLe

BLOCKS, LENGTH, WIDTH = 2, 2, 32  # of the toy: two prompted blocks, rows of its image tower


def build(**params: Any) -> tuple[MaPLe, State, Batch]:
    federation = toy_federation(MaPLe, params)
    assert isinstance(federation.method, MaPLe)
    _, theta = federation.theta(federation.start(), ALL)
    return federation.method, theta, first_rows(federation, ALL, [3] * 4, "train", theta)


def test_every_block_has_its_own_prompt_and_coupling() -> None:
    _, theta, _ = build()
    assert {name: tuple(tensor.shape) for name, tensor in theta.items()} == {
        "text": (4, BLOCKS, LENGTH, 16),
        "coupling.weight": (4, BLOCKS, WIDTH, 16),
        "coupling.bias": (4, BLOCKS, WIDTH),
    }


def test_visual_prompts_are_linear_maps_of_the_text_prompts_of_their_block() -> None:
    method, theta, _ = build()
    weight, bias, text = (theta[name][3, 1] for name in ("coupling.weight", "coupling.bias", "text"))
    torch.testing.assert_close(method.visual(theta)[3, 1], torch.stack([weight @ row + bias for row in text]))


def test_one_block_without_coupling_is_a_context_and_empty_rows() -> None:
    method, theta, batch = build(blocks=1)
    theta = theta | {name: torch.zeros_like(theta[name]) for name in ("coupling.weight", "coupling.bias")}
    empty = batch.pad(method.backbone.image_features(batch.images, shallow(torch.zeros(12, LENGTH, WIDTH))))
    context = theta["text"][:, 0]  # of PromptFL
    assert torch.equal(method.class_features(theta), method.encode(context))
    torch.testing.assert_close(method.logits(theta, batch), method.cosine_logits(empty, method.encode(context)))


def test_without_weights_only_the_biases_reach_the_image_tower() -> None:
    method, theta, batch = build()
    theta["coupling.weight"] = torch.zeros_like(theta["coupling.weight"])
    images = method.prompted_images(theta, batch)
    assert torch.equal(images, method.prompted_images(theta | {"text": theta["text"] + 1}, batch))
    moved = theta | {"coupling.bias": theta["coupling.bias"] + torch.randn(WIDTH)}
    assert float((images - method.prompted_images(moved, batch)).abs().max()) > 1e-3


def test_a_gradient_reaches_every_prompt_through_either_tower() -> None:
    method, theta, batch = build()
    text = theta["text"].clone().requires_grad_()
    for features in (method.class_features({"text": text}), method.prompted_images(theta | {"text": text}, batch)):
        (gradient,) = torch.autograd.grad(features.square().sum() + features[..., 0].sum(), text)
        assert (gradient.abs().amax((2, 3)) > 1e-6).all()


def test_prompts_and_couplings_are_averaged_separately() -> None:
    method, theta, _ = build()
    uploads = {name: tensor + torch.arange(4.0).view(4, *[1] * (tensor.dim() - 1)) for name, tensor in theta.items()}
    weights = torch.tensor([0.5, 0.5, 0, 0], dtype=torch.double)
    for name, mean in method.aggregate({}, uploads, weights, ALL).items():
        torch.testing.assert_close(mean, theta[name][0] + 0.5)


def test_no_more_blocks_than_the_shallower_tower_has() -> None:
    with pytest.raises(UserError, match="maple: blocks = 3, but the shallower tower has 2; use fewer"):
        toy_federation(MaPLe, {"blocks": 3})
