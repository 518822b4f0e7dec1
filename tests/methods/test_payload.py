"""What travels at ViT-B/16 shapes, measured on `meta` (no weights, no memory) against the published formulas.

Text methods are in test_text_costs.py.
"""

import re
from functools import cache
from typing import Any

import pytest
import timm
import torch
from support.payloads import floats_sent

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.core.fields import build
from fedprompt.harness.conformance.toy import toy_backbone, toy_clip
from fedprompt.harness.federation import hooks
from fedprompt.methods import Method, State, Task, registry


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
    ("pfpt", 10, 7_680, 7_680),
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
    ("fedit", 100, 294_912, 294_912),
    ("ffa-lora", 100, 147_456, 147_456),
    ("flexlora rank=16", 100, 589_824, 589_824),
    ("lora-fair", 100, 294_912, 294_912),
    ("fed-adapter", 100, 1_189_632, 1_189_632),
    ("fed-kv-adapter", 100, 147_648, 147_648),
    ("fed-kv-adapter share=all", 100, 460_992, 460_992),
    ("fed-kv-adapter share=all bottleneck=256", 100, 7_099_392, 7_099_392),
]


@pytest.mark.parametrize(("name", "classes", "down", "up"), CASES)
def test_payload_at_vit_base(name: str, classes: int, down: int, up: int) -> None:
    name, *params = name.split()
    method = registry().get(name)
    head = "global" if name == "pep-fedpt" else "local"
    task = Task(tuple(map(str, range(classes))), torch.ones(6, classes), head)
    built = method(build(method.Params, dict(param.split("=") for param in params), name), vit_base(), task)
    server = built.init_server(torch.Generator())
    received = hooks.download(built, server, [0])
    personal = {key: value[None] for key, value in built.init_personal(torch.Generator(), 0).items()}
    theta = {**received, **personal}
    sent = built.upload({**theta, **hooks.end_visit(built, theta, [])}, received)
    assert (floats(received), floats(sent)) == (down, up) == floats_sent(built)


# -- formulas as `fedprompt methods` prints them ----------------------------------------------------------------------

OTHER_SIZES = {"length": 3, "groups": 7, "rank": 3, "bottleneck": 5, "hidden": 9, "exchanged": 4, "visual_length": 3}


def built_with(name: str, backbone: FrozenViT, classes: int, **params: Any) -> Method:
    cls = registry().get(name)
    task = Task(tuple(map(str, range(classes))), torch.ones(6, classes, dtype=torch.int64), "local")
    return cls(build(cls.Params, params, name), backbone, task)


def symbols_of(method: Method) -> dict[str, int]:
    """What the letters of docs/methods.md stand for."""
    vit, params = method.backbone, {key: value for key, value in vars(method.params).items() if type(value) is int}
    names = {"T": "length", "m": "length", "G": "groups", "r": "rank", "h": "hidden", "d_a": "bottleneck"}
    names |= {"v": "instance_length", "m_v": "visual_length", "k": "exchanged", "J": "experts"}
    symbols = {letter: params[name] for letter, name in names.items() if name in params}
    symbols |= {"C": method.task.num_classes, "L": vit.depth, "M": vit.tokens - 1, "m_s": symbols.get("m", 0) // 2}
    for letter, name in {"n": "adapted", "D_g": "global_depth", "D_p": "instance_depth", "K": "experts"}.items():
        symbols[letter] = getattr(method, name, 0)
    symbols |= {
        letter: len(getattr(method, f"{name}_blocks", ())) for letter, name in {"A": "shared", "B": "group"}.items()
    }
    symbols |= {"U": len(getattr(method, "outside_prompts", ())), "J": symbols.get("J", getattr(method, "blocks", 0))}
    widths = {"d": 24, "d_t": 16, "d_v": 32} if "text" in method.needs else {"d": vit.width}  # of the toy's towers
    return symbols | widths


def value(formula: str, symbols: dict[str, int]) -> tuple[int, int]:
    """(down, up) of "E each way" or "E down, E up", with ", and E if CONDITION"."""

    def number(expression: str) -> int:
        return int(eval(expression.replace("^", "**"), {}, symbols))

    more = re.search(r", and (.+) if (.+)", formula)
    extra = number(more[1]) if more and number(more[2]) else 0
    ways = re.match(r"(.+) each way", formula) or re.match(r"(.+) down, (.+) up", formula)
    assert ways
    return number(ways[1]) + extra, number(ways[ways.lastindex or 1]) + extra


@pytest.mark.parametrize("name", registry().names())
def test_a_formula_holds_at_two_sizes(name: str) -> None:
    fields, text = registry().get(name).Params.__dataclass_fields__, "text" in registry().get(name).needs
    other = {key: size for key, size in OTHER_SIZES.items() if key in fields}
    small, large = toy_clip() if text else toy_backbone(), toy_clip() if text else vit_base()
    for method in (built_with(name, small, 4), built_with(name, large, 11, **other)):
        assert value(method.payload_formula, symbols_of(method)) == floats_sent(method)
