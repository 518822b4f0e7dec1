"""What travels at ViT-B/16 shapes, measured on `meta` (no weights, no memory) against the published formulas."""

from functools import cache

import pytest
import timm
import torch

from fedprompt.harness.backbone import FrozenViT
from fedprompt.harness.fields import build
from fedprompt.methods import State, Task, registry


@cache
def vit_base() -> FrozenViT:
    with torch.device("meta"):
        vit = timm.create_model("vit_base_patch16_224", num_classes=0)
        return FrozenViT(vit, "vit_base_patch16_224", "random", (0.5,) * 3, (0.5,) * 3)


def floats(payload: State) -> int:
    return sum(tensor[0].numel() for tensor in payload.values())


# name, classes, floats down, floats up
CASES = [
    ("fedvpt", 10, 7_680, 7_680),
    ("fedvpt-d", 100, 92_160, 92_160),
    ("pfedpg", 10, 7_680, 7_680),
    ("pfedpg", 100, 7_680, 7_680),
    ("fedpr-s", 100, 7_680, 7_680),
    ("fedpr-d", 10, 92_160, 92_160),
]


@pytest.mark.parametrize(("name", "classes", "down", "up"), CASES)
def test_payload_at_vit_base(name: str, classes: int, down: int, up: int) -> None:
    method = registry().get(name)
    task = Task(tuple(map(str, range(classes))), torch.ones(6, classes))
    built = method(build(method.Params, {}, name), vit_base(), task)
    server = built.init_server(torch.Generator())
    received = built.download(server, [0])
    personal = {key: value[None] for key, value in built.init_personal(torch.Generator(), 0).items()}
    sent = built.upload({**received, **personal}, received)
    assert (floats(received), floats(sent)) == (down, up) == built.payload()
