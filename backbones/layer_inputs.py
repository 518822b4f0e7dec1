"""Frozen tokens: what enters blocks without prompts is a function of the image, kept while memory allows."""

import numpy as np
import torch
from torch import Tensor

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.datasets import Images

CHUNK = 64


def kept_images(backbone: FrozenViT, depth: int | None, memory: int) -> int:
    """How many images' tokens for the first ``depth`` blocks (all by default) fit into ``memory`` bytes."""
    floats = (depth or backbone.depth) * backbone.tokens * backbone.width
    return memory // (floats * backbone.mean.element_size())


class LayerInputs:
    """Tokens entering the first ``depth`` blocks of a pass without prompts, by the image's row in its data set.

    They are kept until ``memory`` bytes are full; those of further images are computed whenever they are asked for::

        inputs = LayerInputs(backbone, dataset.images)
        tokens = inputs(torch.tensor([5, 7, 5]))  # of three images, computed for two
    """

    def __init__(self, backbone: FrozenViT, images: Images, depth: int | None = None, memory: int = 2**30) -> None:
        self._backbone, self._images, self._depth = backbone, images, depth or backbone.depth
        shape = (self._depth, backbone.tokens, backbone.width)
        # Memory is taken as it is written: what is never asked for costs none.
        self._kept = backbone.mean.new_empty(min(kept_images(backbone, depth, memory), len(images)), *shape)
        self._place = torch.full((len(images),), -1)  # of each image among the kept ones
        self._count = 0

    def __call__(self, rows: Tensor) -> Tensor:
        """The tokens of images ``rows``, (n, depth, 1+M, d), on the backbone's device."""
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
        images = torch.from_numpy(self._images[rows.numpy()])
        return self._backbone.layer_inputs(images, self._depth)
