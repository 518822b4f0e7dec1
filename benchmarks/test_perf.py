"""Micro-benchmarks, for `make perf`; not part of `make test`, which times nothing."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from speed import MICRO, a_round, an_evaluation, federation

from fedprompt.backbones.backbone import deep
from fedprompt.backbones.weights import load_backbone

METHODS = ("fedvpt-d", "pfedbayespt-d", "pfedbayespt-g", "pfedbayespt")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.benchmark(group="a round, six clients")
@pytest.mark.parametrize("method", METHODS)
def test_round(benchmark: Any, method: str) -> None:
    assert benchmark(partial(a_round, federation(method, clients=6, images=16))) is not None


@pytest.mark.benchmark(group="an evaluation, six clients")
@pytest.mark.parametrize("method", METHODS)
def test_evaluation(benchmark: Any, method: str) -> None:
    assert len(benchmark(partial(an_evaluation, federation(method, clients=6, images=16)))) == 6


def _passes() -> dict[str, Callable[[], object]]:
    vit = load_backbone(MICRO)
    images = torch.randint(0, 256, (192, 3, 32, 32), dtype=torch.uint8)
    prompts = torch.rand(192, vit.depth, 2, vit.width)
    return {
        "last block for all tokens": lambda: vit.forward(images, rows=vit.tokens),
        "last block for CLS only": lambda: vit.cls(images),
        "prompts in every block": lambda: vit.cls(images, deep(prompts)),
        "tokens of every block": lambda: vit.layer_inputs(images),
    }


@pytest.mark.benchmark(group="a forward pass of 192 images")
@pytest.mark.parametrize("way", list(_passes()))
def test_pass(benchmark: Any, way: str) -> None:
    with torch.no_grad():
        assert benchmark(_passes()[way]) is not None
