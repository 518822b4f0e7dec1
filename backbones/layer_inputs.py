"""Frozen tokens: without prompts they are a function of the image, kept while memory allows."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.datasets import Images

CHUNK = 64


def layer_shape(backbone: FrozenViT, depth: int | None) -> tuple[int, ...]:
    """Of one image's tokens for the first ``depth`` blocks (all by default)."""
    return (depth or backbone.depth, backbone.tokens, backbone.width)


def patch_shape(backbone: FrozenViT) -> tuple[int, ...]:
    """Of one image's `FrozenCLIP.spatial`."""
    assert isinstance(backbone, FrozenCLIP)
    return (backbone.tokens - 1, backbone.dim)


def kept_images(backbone: FrozenViT, shape: tuple[int, ...], memory: int) -> int:
    """How many images' tokens of ``shape`` fit into ``memory`` bytes."""
    return memory // (math.prod(shape) * backbone.mean.element_size())


class FrozenTokens:
    """What ``compute`` makes of images, by the image's row in its data set.

    Tokens are kept until ``memory`` bytes are full; those of further images are computed whenever they are asked for::

        inputs = LayerInputs(backbone, dataset.images)
        tokens = inputs(torch.tensor([5, 7, 5]))  # of three images, computed for two
    """

    def __init__(
        self,
        backbone: FrozenViT,
        images: Images,
        compute: Callable[[Tensor], Tensor],
        shape: tuple[int, ...],  # of one image's tokens
        memory: int,
    ) -> None:
        self._images, self._compute_images = images, compute
        # Memory is taken as it is written: what is never asked for costs none.
        self._kept = backbone.mean.new_empty(min(kept_images(backbone, shape, memory), len(images)), *shape)
        self._place = torch.full((len(images),), -1)  # of each image among the kept ones
        self._count = 0

    def __call__(self, rows: Tensor) -> Tensor:
        """The tokens of images ``rows``, (n, *shape), on the backbone's device."""
        new = np.unique(rows[self._place[rows] < 0].numpy())
        self._keep(torch.from_numpy(new[: len(self._kept) - self._count]))
        place = self._place[rows]
        if bool((place >= 0).all()):
            return self._kept[place]
        inputs = self._kept.new_empty(len(rows), *self._kept.shape[1:])
        inputs[place >= 0] = self._kept[place[place >= 0]]
        inputs[place < 0] = self._compute(rows[place < 0])
        return inputs

    def _keep(self, rows: Tensor) -> None:
        for chunk in torch.split(rows, CHUNK) if len(rows) else ():
            after = self._count + len(chunk)
            self._kept[self._count : after] = self._compute(chunk)
            self._place[chunk] = torch.arange(self._count, after)
            self._count = after

    def _compute(self, rows: Tensor) -> Tensor:
        with torch.no_grad():
            return self._compute_images(torch.from_numpy(self._images[rows.numpy()]))


class LayerInputs(FrozenTokens):
    """Tokens entering the first ``depth`` blocks of a pass without prompts, (n, depth, 1+M, d)."""

    def __init__(self, backbone: FrozenViT, images: Images, depth: int | None = None, memory: int = 2**30) -> None:
        shape = layer_shape(backbone, depth)
        super().__init__(backbone, images, lambda some: backbone.layer_inputs(some, depth), shape, memory)


class PatchFeatures(FrozenTokens):
    """L2-normalised embeddings of the patches without prompts, (n, M, d)."""

    def __init__(self, backbone: FrozenViT, images: Images, memory: int = 2**30) -> None:
        assert isinstance(backbone, FrozenCLIP)
        super().__init__(backbone, images, backbone.spatial, patch_shape(backbone), memory)
