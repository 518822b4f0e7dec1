"""What travels at ViT-B/16 shapes, measured on `meta` (no weights, no memory) against the published formulas.

Text methods are in test_text_costs.py.
"""

from functools import cache

import pytest
import timm
import torch

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.core.fields import build
from fedprompt.methods import State, Task, registry


@cache
def vit_base() -> FrozenViT:
    with torch.device("meta"):
        vit = timm.create_model("vit_base_patch16_224", num_classes=0)
        return FrozenViT(vit, "vit_base_patch16_224", "random", (0.5,) * 3, (0.5,) * 3)


def floats(payload: State) -> int:
    return sum(tensor[0].numel() for tensor in payload.values())


# name and parameters, classes, floats down, floats up
CASES = [
    ("fedvpt", 10, 7_680, 7_680),
    ("fedvpt-d", 100, 92_160, 92_160),
    ("pfedpg", 10, 7_680, 7_680),
    ("pfedpg", 100, 7_680, 7_680),
    ("fedpr-s", 100, 7_680, 7_680),
    ("fedpr-d", 10, 92_160, 92_160),
    ("pfedbayespt-d", 10, 263_436, 263_436),
    ("pfedbayespt-g", 100, 416_280, 416_280),
    ("pfedbayespt", 100, 416_280, 416_280),
    ("sgpt", 10, 17_664 + 6, 17_664 + 6),
    ("sgpt groups=20 shared_blocks=0-3 group_blocks=4-6", 100, 64_512 + 20, 64_512 + 20),
    ("sgpt groups=20", 100, 49_920 + 20, 49_920 + 20),
    ("sgpt length=10", 10, 24_576 + 6, 24_576 + 6),
    ("pep-fedpt", 10, 30_730, 30_740),
    ("pep-fedpt", 100, 238_180, 238_280),
    ("fedsa-lora", 100, 147_456, 147_456),
    ("fedsa-lora share=AB", 100, 294_912, 294_912),
    ("fed-adapter", 100, 1_189_632, 1_189_632),
]


@pytest.mark.parametrize(("name", "classes", "down", "up"), CASES)
def test_payload_at_vit_base(name: str, classes: int, down: int, up: int) -> None:
    name, *params = name.split()
    method = registry().get(name)
    head = "global" if name == "pep-fedpt" else "local"
    task = Task(tuple(map(str, range(classes))), torch.ones(6, classes), head)
    built = method(build(method.Params, dict(param.split("=") for param in params), name), vit_base(), task)
    server = built.init_server(torch.Generator())
    received = built.download(server, [0])
    personal = {key: value[None] for key, value in built.init_personal(torch.Generator(), 0).items()}
    theta = {**received, **personal}
    sent = built.upload({**theta, **built.end_visit(theta, [])}, received)
    assert (floats(received), floats(sent)) == (down, up) == built.payload()
