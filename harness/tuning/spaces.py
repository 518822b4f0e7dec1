"""What is searched of each method: all of its rates, and the parameters that it declares a grid for."""

from collections.abc import Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

import torch

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.weights import BackboneSpec, load_backbone
from fedprompt.core.errors import UserError
from fedprompt.core.fields import build, is_rate
from fedprompt.methods import Method, Task, registry


def search_space(
    method: str, suite_grid: Mapping[str, Any], where: str, backbone: BackboneSpec | None = None
) -> dict[str, tuple[Any, ...]]:
    """The values that each searched parameter may start from, rates first.

    A list in ``suite_grid`` replaces the method's, and an empty one excludes the parameter. Rates are searched without
    any list, too. Of the method's own lists, values that it refuses on ``backbone`` (the ninth block of four) are left
    out.
    """
    cls = registry().get(method)
    space: dict[str, tuple[Any, ...]] = {}
    for field in sorted(fields(cls.Params), key=lambda field: not is_rate(field.name)):
        values = suite_grid.get(field.name, field.metadata.get("grid", ()))
        if not isinstance(values, list | tuple):
            raise UserError(f"{where}: {field.name} = {values!r} is not a list of values.")
        text = f"{where} for {method}"
        checked = [getattr(build(cls.Params, {field.name: value}, text), field.name) for value in values]
        if backbone and field.name not in suite_grid:
            checked = [value for value in checked if is_rate(field.name) or _fits(cls, field.name, value, backbone)]
        if checked or (field.name not in suite_grid and is_rate(field.name)):
            space[field.name] = tuple(dict.fromkeys(checked))
    return space


def _fits(cls: type[Method], name: str, value: Any, backbone: BackboneSpec) -> bool:
    """Whether the method can be built so; shapes are enough to tell."""
    task = Task(("one class",), torch.ones(1, 1, dtype=torch.int64))
    try:
        cls(build(cls.Params, {name: value}, cls.name), _shapes(backbone), task)
    except UserError:
        return False
    return True


@lru_cache(maxsize=1)
def _shapes(backbone: BackboneSpec) -> FrozenViT:
    return load_backbone(replace(backbone, weights="random"), device="meta")


def bounds(method: str, name: str) -> tuple[float, float]:
    """The least and the greatest value that the method allows."""
    metadata = next(field.metadata for field in fields(registry().get(method).Params) if field.name == name)
    low, high = metadata.get("low"), metadata.get("high")
    return float("-inf") if low is None else low, float("inf") if high is None else high
