"""Projected gradients, on literal numbers."""

import torch

from fedprompt.methods import State
from fedprompt.methods._projection import guided_loss, without_conflict


def test_what_contradicts_the_guide_is_removed() -> None:
    task, guide = torch.tensor([[3.0, -2.0]]), torch.tensor([[0.0, 4.0]])
    assert without_conflict(task, guide).tolist() == [[3.0, 0.0]]
    assert without_conflict(task, guide, 0.5).tolist() == [[3.0, -1.0]]


def test_gradients_that_agree_are_left_alone() -> None:
    task, guide = torch.tensor([[3.0, 2.0]]), torch.tensor([[-1.0, 4.0]])
    assert without_conflict(task, guide).tolist() == [[3.0, 2.0]]


def test_a_guide_without_a_gradient_changes_nothing() -> None:
    task = torch.tensor([[3.0, 2.0]])
    assert without_conflict(task, torch.zeros(1, 2)).tolist() == [[3.0, 2.0]]
    assert without_conflict(task, torch.tensor([[-1e-5, 1e-6]])).tolist() == [[3.0, 2.0]]  # rounding errors


def test_the_result_never_points_against_the_guide_and_is_linear_in_a_conflicting_gradient() -> None:
    task, guide = torch.randn(2, 50, 4, 6, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    result = without_conflict(task, guide)
    assert (result * guide).sum((1, 2)).min() > -1e-12
    conflicts = (task * guide).sum((1, 2)) < 0
    assert 10 < conflicts.sum() < 40
    torch.testing.assert_close(without_conflict(3 * task, guide)[conflicts], 3 * result[conflicts])
    torch.testing.assert_close(without_conflict(task, 3 * guide), result)


def test_clients_are_projected_each_by_itself() -> None:
    task, guide = torch.tensor([[1.0, -1.0], [1.0, -1.0]]), torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    assert without_conflict(task, guide).tolist() == [[1.0, 0.0], [1.0, -1.0]]


def test_the_loss_has_the_tasks_value_and_the_projected_gradient() -> None:
    def losses(theta: State) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = theta["x"].unbind(1)
        return 3 * x - 2 * y, y.square()  # gradients (3, -2) and (0, 2 y)

    leaf = torch.tensor([[1.0, 2.0]], requires_grad=True)
    value = guided_loss(losses, {"x": leaf}, "x", 1.0)
    assert value.tolist() == [-1.0]
    assert torch.autograd.grad(value.sum(), leaf)[0].tolist() == [[3.0, 0.0]]
    assert guided_loss(losses, {"x": leaf.detach()}, "x", 1.0).tolist() == [-1.0]
