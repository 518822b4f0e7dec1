"""The server of FOCoOp: transport finds prompts for things outside the classes that are class-like after all."""

import torch
from torch import Tensor

RELAXATION = 0.1  # of both marginals, by their Kullback-Leibler divergence
SWEEPS = 300
KEPT = 0.5  # of a class context, where class-like prompts are moved into it


def exchange(classes: Tensor, outside: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """New class contexts (C, p) and ``count`` outside contexts, from those (n, p) that clients sent.

    Rows that receive much mass from the classes are class-like: they enter the classes that they are transported to.
    The rows with the least mass become the outside contexts.
    """
    plan = unbalanced_plan(outside.double(), classes.double())
    mass = plan.sum(1)
    selected = is_heavy(mass)
    moved = plan * selected[:, None]
    received = moved.sum(0)[:, None]
    centre = moved.mT @ outside.double() / received.clamp(min=torch.finfo(torch.float64).tiny)
    mixed = torch.where(received > 0, torch.lerp(centre, classes.double(), KEPT), classes.double())
    order = mass.argsort(stable=True)
    light = order[~selected[order]]
    if not len(light):  # all have the same mass
        light = order
    rows = light[torch.arange(count, device=light.device) % len(light)]
    return mixed.to(classes.dtype), outside[rows]


def unbalanced_plan(rows: Tensor, columns: Tensor, relaxation: float = RELAXATION) -> Tensor:
    """Transport between uniform marginals that both may give way, by majorisation and minimisation, (n, C)."""
    cost = torch.cdist(rows, columns).square()
    cost = cost / cost.max().clamp(min=torch.finfo(cost.dtype).tiny)
    uniform = torch.full_like(cost, 1 / (cost.shape[0] * cost.shape[1]))
    kernel, plan = uniform.sqrt() * (-cost / (2 * relaxation)).exp(), uniform
    for _ in range(SWEEPS):
        plan = kernel * plan / (plan.sum(1, keepdim=True) * plan.sum(0)).sqrt()
    return plan


def is_heavy(mass: Tensor) -> Tensor:
    """Which of the two clusters of masses each row belongs to, by two means; none is heavy if all are equal."""
    low, high = mass.min(), mass.max()
    if mass.is_meta or not bool(high > low * (1 + 1e-9)):
        return torch.zeros_like(mass, dtype=torch.bool)
    heavy = mass > (low + high) / 2
    for _ in range(100):
        threshold = (mass[heavy].mean() + mass[~heavy].mean()) / 2
        moved = mass > threshold
        if torch.equal(moved, heavy):
            break
        heavy = moved
    return heavy
