"""Local training of several clients at once: their tensors are stacked, their gradients are not mixed."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedprompt.harness.clients import ClientData
from fedprompt.harness.protocol import Protocol
from fedprompt.harness.rng import Purpose, torch_rng
from fedprompt.methods._contract import Method, Stage, State


def stack_states(states: Sequence[State]) -> State:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def unstack_state(stacked: State, position: int) -> State:
    """One client's tensors, copied: nothing of a client is a view of its neighbours'."""
    return {name: tensor[position].clone() for name, tensor in stacked.items()}


def train(
    method: Method,
    theta: State,
    stages: Sequence[Stage],
    data: ClientData,
    clients: Sequence[int],
    protocol: Protocol,
    key: tuple[int, int],  # (seed, round)
    purpose: Purpose = "batches",
) -> tuple[State, Tensor]:
    """A visit of ``clients``: SGD through the stages; returns theta and each client's mean loss over its steps.

    The loss of client k depends on slice k alone, so the gradient of the sum is every client's own gradient. The
    optimiser's state lives for one stage. A client that has no batch left in an epoch is not touched: neither
    momentum nor weight decay moves it.
    """
    seed, round_ = key
    orders = [torch_rng(seed, purpose, round_, client) for client in clients]
    rngs = [torch_rng(seed, "noise", purpose, round_, client) for client in clients]
    start, theta = dict(theta), dict(theta)
    losses, steps = torch.zeros(2, len(clients), device=data.device)
    for stage in stages:
        momenta = {name: torch.zeros_like(theta[name]) for name in stage.rates}
        for _ in range(stage.epochs if stage.rates else 0):
            for plain in data.epoch(clients, protocol.batch_size, orders, rngs, stage.name):
                batch = replace(plain, start=start)
                leaves = {name: theta[name].detach().requires_grad_() for name in stage.rates}
                loss = method.loss({**theta, **leaves}, batch)
                grads = torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
                active = batch.mask.any(1)
                for (name, rate), grad in zip(stage.rates.items(), grads, strict=True):
                    theta[name], momenta[name] = _sgd(
                        leaves[name].detach(),
                        grad,
                        momenta[name],
                        rate,
                        protocol.momentum,
                        protocol.weight_decay,
                        active,
                    )
                losses += torch.where(active, loss.detach(), 0)
                steps += active
    return theta, (losses / steps.clamp(min=1)).cpu()


def _sgd(
    value: Tensor, grad: Tensor | None, momentum: Tensor, rate: float, mu: float, decay: float, active: Tensor
) -> tuple[Tensor, Tensor]:
    """torch.optim.SGD's update for the active clients; a tensor the loss does not reach has gradient zero."""
    slope = value * decay if grad is None else grad + value * decay
    mask = active.view(-1, *[1] * (value.dim() - 1))
    momentum = torch.where(mask, mu * momentum + slope, momentum)
    return torch.where(mask, value - rate * momentum, value), momentum
