"""Frozen tokens, kept within a budget."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedprompt.backbones.layer_inputs import LayerInputs, kept_images, layer_shape
from fedprompt.harness.conformance.toy import toy_backbone, toy_dataset

BACKBONE, IMAGES = toy_backbone(), toy_dataset().images
IMAGE_BYTES = 4 * 3 * 17 * 32
ROWS = torch.tensor([7, 3, 7, 12, 0])


def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each later frozen pass has."""
    passes: list[int] = []
    original = type(BACKBONE).layer_inputs

    def watched(self: Any, images: Tensor, depth: int | None = None) -> Tensor:
        passes.append(len(images))
        return original(self, images, depth)

    monkeypatch.setattr(type(BACKBONE), "layer_inputs", watched)
    return passes


@pytest.mark.parametrize("images_kept", [0, 2, 100])
@pytest.mark.parametrize("depth", [None, 2])
def test_memory_does_not_change_a_bit(images_kept: int, depth: int | None) -> None:
    inputs = LayerInputs(BACKBONE, IMAGES, depth, images_kept * IMAGE_BYTES)
    expected = BACKBONE.layer_inputs(torch.from_numpy(IMAGES[ROWS.numpy()]), depth)
    for _ in range(2):
        assert torch.equal(inputs(ROWS), expected)


def test_an_image_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, passes = LayerInputs(BACKBONE, IMAGES), computed(monkeypatch)
    inputs(ROWS)
    inputs(ROWS.flip(0))
    inputs(torch.tensor([3, 5]))
    assert passes == [4, 1]


def test_what_does_not_fit_is_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, passes = LayerInputs(BACKBONE, IMAGES, memory=3 * IMAGE_BYTES + 1), computed(monkeypatch)
    inputs(ROWS)
    inputs(ROWS)
    assert passes == [3, 1, 1]


def test_an_empty_batch() -> None:
    assert LayerInputs(BACKBONE, IMAGES)(torch.empty(0, dtype=torch.int64)).shape == (0, 3, 17, 32)


def test_callers_get_copies() -> None:
    inputs = LayerInputs(BACKBONE, IMAGES)
    before = inputs(ROWS).clone()
    inputs(ROWS).zero_()
    assert torch.equal(inputs(ROWS), before)


def test_images_that_fit() -> None:
    assert kept_images(BACKBONE, layer_shape(BACKBONE, None), 10 * IMAGE_BYTES) == 10
    assert kept_images(BACKBONE, layer_shape(BACKBONE, 1), 10 * IMAGE_BYTES) == 30
