"""Steps along a gradient that autograd would not give: the task's, without what contradicts a guide.

Both gradients are computed inside the loss, and the loss returned has the task's value and the projected gradient.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fedprompt.methods._contract import State

NEGLIGIBLE = 1e-4  # a guide this much shorter than the task's gradient is rounding: it points nowhere


def guided_loss(losses: Callable[[State], tuple[Tensor, Tensor]], theta: State, name: str, strength: float) -> Tensor:
    """The task's loss, (K,), whose gradient in ``theta[name]`` is that of `without_conflict`.

    Args:
        losses: each client's loss of the task and of the guide, (K,) each, from theta.
        theta: what the clients hold.
        name: the tensor that trains.
        strength: how much of the conflicting part is removed; 0 leaves the task's gradient as it is.
    """
    with torch.enable_grad():
        leaf = theta[name].detach().requires_grad_()
        task, guide = losses({**theta, name: leaf})
        (to_task,) = torch.autograd.grad(task.sum(), leaf, retain_graph=True)
        (to_guide,) = torch.autograd.grad(guide.sum(), leaf)
    step = without_conflict(to_task, to_guide, strength)
    moved = theta[name] - theta[name].detach()  # zero, but it carries the gradient
    return task.detach() + (step * moved).flatten(1).sum(1)


def without_conflict(task: Tensor, guide: Tensor, strength: float = 1.0) -> Tensor:
    """Each client's gradient ``task`` (K, ...) without its part against ``guide``, if the two point apart."""
    rows, direction = task.flatten(1), guide.flatten(1)
    squared, smallest = direction.square().sum(1), torch.finfo(rows.dtype).tiny
    against = (rows * direction).sum(1).clamp(max=0) / squared.clamp(min=smallest)
    against = against * (squared > NEGLIGIBLE**2 * rows.square().sum(1))  # predictions that are the guide's already
    return (rows - strength * against[:, None] * direction).view_as(task)
