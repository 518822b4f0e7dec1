"""Notices a method from outside that changes what other cells compute with: our classes and functions, frozen weights.

Python keeps no plugin from doing so. Cells of built-in methods therefore never run in a process in which a plugin has
run, and a round of a plugin counts only if everything is as it was before its cell began.
"""

import hashlib
import random
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import nn

from fedprompt.core.errors import UserError
from fedprompt.methods import Method

PACKAGE = "fedprompt"
LAZY = (
    "_abc_",
    "__annotations",
    "__dict__",
    "__weakref__",
    "__doc__",
    "__slotnames__",
)  # set by Python
Parts = tuple[object, ...]


def is_foreign(method: type[Method]) -> bool:
    """Whether the method is not one of ours: a plugin, or of another package."""
    return not method.__module__.startswith(f"{PACKAGE}.")


class ChangedError(UserError):
    """A method changed what all cells share."""


class Guard:
    """What all cells share, as it is before a cell runs; `check` refuses the cell if it has changed since."""

    def __init__(self, backbone: nn.Module) -> None:
        self._backbone, self._weights = backbone, weights_digest(backbone)
        self._code = dict(_functions())
        self._random = _generators()

    def check(self) -> None:
        """Raise a ChangedError that names what was changed."""
        now = dict(_functions())
        known = {name.rpartition(".")[0] for name in self._code}
        added = [name for name in now if name not in self._code and name.rpartition(".")[0] in known - set(sys.modules)]
        for name in (*self._code, *added):
            if not _same(self._code.get(name, ()), now.get(name, ())):
                raise ChangedError(f"the method replaced {name}, which others compute with; nothing of it counts.")
        if weights_digest(self._backbone) != self._weights:
            raise ChangedError("the method changed the weights of the frozen backbone; nothing of it counts.")
        for name, state in _generators().items():
            if state != self._random[name]:
                raise ChangedError(f"the method drew from or seeded {name}; draw from the keys that hooks are given.")


def weights_digest(backbone: nn.Module) -> str:
    """Of every parameter and buffer, by name."""
    digest = hashlib.sha256()
    for name, tensor in [*backbone.named_parameters(), *backbone.named_buffers()]:
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _generators() -> dict[str, str]:
    """Digests of the states of the global generators, of which nothing of ours draws."""
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002
    states = {
        "Python's global generator": repr(random.getstate()),
        "NumPy's global generator": repr((numpy_state["state"]["key"].tobytes(), numpy_state["state"]["pos"])),
        "PyTorch's global generator": repr(torch.get_rng_state().numpy().tobytes()),
    }
    return {name: hashlib.sha256(state.encode()).hexdigest() for name, state in states.items()}


def _functions() -> Iterator[tuple[str, Parts]]:
    """Every class attribute and function of our loaded modules; the objects themselves, so that none is recycled."""
    for module_name, module in sorted(sys.modules.items()):
        if not module_name.startswith(f"{PACKAGE}.") or module is None:
            continue
        for name, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__ == module_name:
                for attribute, member in list(vars(value).items()):
                    if not attribute.startswith(LAZY):
                        yield f"{module_name}.{name}.{attribute}", _parts(member)
            elif callable(value):
                yield f"{module_name}.{name}", _parts(value)


def _parts(value: Any) -> Parts:
    """What makes a function: itself, its code and its defaults; likewise behind class methods and properties."""
    function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return (value,)
    return value, code, getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)


def _same(before: Parts, now: Parts) -> bool:
    return len(before) == len(now) and all(old is new for old, new in zip(before, now, strict=True))
