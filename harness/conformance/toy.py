"""A federation small enough to run in milliseconds: what `fedprompt check` and the tests put methods through."""

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from timm.models.vision_transformer import Block, VisionTransformer
from torch import nn

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.clip import TEMPLATE, FrozenCLIP
from fedprompt.backbones.layer_inputs import LayerInputs, PatchFeatures
from fedprompt.backbones.micro_clip import WordTokenizer, make_vocabulary
from fedprompt.backbones.text import TextTower, spoken_name
from fedprompt.core.rng import derive, numpy_rng
from fedprompt.datasets import Dataset, Partition
from fedprompt.harness.federation.assembly import make_federation
from fedprompt.harness.federation.policy import head_owner
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.rounds import Federation
from fedprompt.methods import Method

CLASS_NAMES = tuple("abcd")
CLASSES, SIZE = len(CLASS_NAMES), 16
TRAIN_SIZES = (13, 8, 21, 5)  # ragged on purpose: one, two and three batches of eight, full and partial
TOKEN_MEMORY = 2**18  # bytes, for the frozen tokens of a part of the images: kept and computed ones meet
PROTOCOL = Protocol(rounds=3, epochs=2, batch_size=8, participation=0.5, last=2, eval_every=1)


def toy_backbone() -> FrozenViT:
    """Width 32, three blocks, two heads, a 4 x 4 grid; weights from a fixed key."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(0, "init", "toy"))
        vit = VisionTransformer(img_size=SIZE, patch_size=4, embed_dim=32, depth=3, num_heads=2, num_classes=0)
    return FrozenViT(vit, "toy", "random", (0.5,) * 3, (0.5,) * 3)


def toy_clip() -> FrozenCLIP:
    """The toy's image tower, and a text tower of width 16 with two blocks that knows its words."""
    vit = toy_backbone().vit
    vocabulary = make_vocabulary([*map(spoken_name, CLASS_NAMES), TEMPLATE])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(0, "init", "toy", "text"))
        embedding, positions = nn.Embedding(len(vocabulary), 16), nn.Parameter(0.01 * torch.randn(32, 16))
        nn.init.normal_(embedding.weight, std=0.02)  # CLIP's own scales: a context of 0.02 is no smaller than a word
        blocks = [Block(16, 2, mlp_ratio=2, qkv_bias=True) for _ in range(2)]
        towers = TextTower(
            WordTokenizer(vocabulary, 32), embedding, positions, blocks, nn.LayerNorm(16), nn.Linear(16, 24, bias=False)
        )
        projection = nn.Linear(32, 24, bias=False)
    return FrozenCLIP(vit, projection, towers, 100.0, "toy", "random", (0.5,) * 3, (0.5,) * 3)


def toy_backbone_for(method: type[Method]) -> FrozenViT:
    return toy_clip() if "text" in method.needs else toy_backbone()


@cache
def toy_dataset() -> Dataset:
    """Four classes that differ in where the picture is bright and in its colour, under noise."""
    per_class = 25
    rng = numpy_rng(0, "data", "toy")
    labels = np.repeat(np.arange(CLASSES), per_class)
    images = rng.integers(0, 90, (len(labels), 3, SIZE, SIZE))
    half = SIZE // 2
    for row, label in enumerate(labels):
        y, x = divmod(int(label), 2)
        images[row, label % 3, y * half : (y + 1) * half, x * half : (x + 1) * half] += 150
    is_test = np.arange(len(labels)) % 5 == 0
    domains = np.zeros_like(labels)
    return Dataset("toy", images.astype(np.uint8), labels, domains, is_test, CLASS_NAMES, ("toy",), "toy")


@cache
def toy_partition() -> Partition:
    """Four clients of different sizes; each has every class it is tested on in training."""
    data, rng = toy_dataset(), numpy_rng(0, "partition", "toy")
    train, test = (rng.permutation(np.flatnonzero(data.is_test == flag)) for flag in (False, True))
    cuts = np.cumsum(TRAIN_SIZES)
    return Partition(
        tuple(np.sort(part) for part in np.split(train, cuts)[:-1]),
        tuple(np.sort(part) for part in np.split(test, [4, 9, 16])),
        tuple(np.empty(0, np.int64) for _ in TRAIN_SIZES),
    )


def toy_federation(
    method: type[Method],
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    backbone: FrozenViT | None = None,
    partition: Partition | None = None,
    dataset: Dataset | None = None,
    **protocol: Any,
) -> Federation:
    """``method`` on the toy; keywords replace fields of its protocol. The head is the paper's if none is given."""
    owner = protocol.pop("head", head_owner(method.paper_policy))
    rules = dataclasses.replace(PROTOCOL, head=owner, **protocol)
    vit, split = backbone or toy_backbone_for(method), partition or toy_partition()
    dataset = dataset or toy_dataset()
    return make_federation(
        method,
        params or {},
        vit,
        dataset,
        split,
        rules,
        seed,
        layer_inputs=lambda depth: LayerInputs(vit, dataset.images, depth, TOKEN_MEMORY),
        patches=lambda: PatchFeatures(vit, dataset.images, TOKEN_MEMORY),
        examples=torch.from_numpy(dataset.images[split.train[0]]),
    )
