"""A change of one part in ten thousand in any method, or of 1e-4 in a tower's weight, is noticed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from fedprompt.harness.report.parity import parity_of_methods
from fedprompt.methods import Method
from parity._comparisons import COMPARISONS
from parity._feed import Alter, Case, as_shipped, clip_tower, vit_tower
from parity._steps import towers

ENTRIES = parity_of_methods()
COMPARED = [name for name, entry in ENTRIES.items() if entry.vectors]
TRAINED = [name for name in COMPARED if name != "zs-clip"]  # it has no loss
AT_THE_SERVER = {"pfedmoap": "aggregate", "pfedpg": "server_gradients", "promptfl": "aggregate", "sgpt": "aggregate"}
CHANGE = 1e-4


def scaled(hook: str) -> Alter:
    """A subclass in which what ``hook`` returns is one part in ten thousand larger."""

    def alter(method: type[Method]) -> type[Method]:
        original: Callable[..., Any] = getattr(method, hook)

        def larger(self: Method, *args: Any) -> Any:
            result = original(self, *args)
            if isinstance(result, torch.Tensor):
                return result * (1 + CHANGE)
            return {name: x * (1 + CHANGE) if x.is_floating_point() else x for name, x in result.items()}

        return type(f"Planted{method.__name__}", (method,), {hook: larger})

    return alter


def noticed(name: str, alter: Alter) -> bool:
    """Whether a comparison of this method exceeds its tolerance."""
    entry = ENTRIES[name]
    mine = [vectors for vectors in COMPARISONS if vectors.name in entry.vectors]
    return any(max(vectors.compare(vectors.case(), alter).values()) > entry.tolerance for vectors in mine)


@pytest.mark.parametrize("name", TRAINED)
def test_a_change_of_the_loss_is_noticed(name: str) -> None:
    assert noticed(name, scaled("loss"))


@pytest.mark.parametrize("name", COMPARED)
def test_a_change_of_the_scores_is_noticed(name: str) -> None:
    assert noticed(name, scaled("predict"))


@pytest.mark.parametrize("name", AT_THE_SERVER)
def test_a_change_at_the_server_is_noticed(name: str) -> None:
    assert noticed(name, scaled(AT_THE_SERVER[name]))


def test_a_change_of_a_projected_step_is_noticed() -> None:
    assert noticed("fedpr-s", scaled("project_step"))


@pytest.mark.parametrize("weight", ["vit.blocks.1.mlp.fc1.weight", "text.blocks.0.attn.qkv.weight", "text.positions"])
def test_a_change_of_a_tower_is_noticed(weight: str) -> None:
    with moved(clip_tower(), weight):
        assert max(towers(Case("clip_towers"), as_shipped).values()) > 1e-7


def test_a_change_of_the_tower_without_text_is_noticed() -> None:
    with moved(vit_tower(), "vit.blocks.1.mlp.fc1.weight"):
        assert noticed("fedvpt", as_shipped)


@contextmanager
def moved(tower: nn.Module, weight: str) -> Iterator[None]:
    """One number of ``weight`` is 1e-4 larger meanwhile."""
    tensor = tower.state_dict()[weight].view(-1)
    before = tensor[0].clone()
    tensor[0] += CHANGE
    try:
        yield
    finally:
        tensor[0] = before
