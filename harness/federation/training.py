"""Local training of several clients at once: their tensors are stacked, their gradients are not mixed."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedprompt.core.errors import UserError
from fedprompt.core.rng import Purpose, torch_rng
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.clients import ClientData
from fedprompt.harness.federation.optimiser import OPTIMISERS, clipped
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.methods import Method, Stage, State


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
    head_inputs: Sequence[Tensor] | None = None,  # of each client's training images, where only the head trains
    constants: State | None = None,  # of the visit, where they are known already
    factor: float = 1.0,  # of all learning rates, by the protocol's schedule; what is fitted for an evaluation keeps 1
) -> tuple[State, Tensor]:
    """A visit of ``clients`` through the stages; returns theta and each client's mean loss over its steps.

    The loss of client k depends on slice k alone, so the gradient of the sum is every client's own gradient. The
    optimiser lives for one stage. A client that has no batch left in an epoch is not touched: neither momentum nor
    weight decay moves it.
    """
    seed, round_ = key
    orders = [torch_rng(seed, purpose, round_, client) for client in clients]
    rngs = [torch_rng(seed, "noise", purpose, round_, client) for client in clients]
    constants = hooks.begin_visit(method, theta, round_) if constants is None else constants
    start, theta = {**theta, **constants}, dict(theta)
    losses, steps = torch.zeros(2, len(clients), device=data.device)
    limit = min(filter(None, (protocol.clip, hooks.clip_norm(method))), default=None)

    def project(name: str, step: Tensor) -> Tensor:
        return hooks.project_step(method, name, step, start)

    for stage in stages:
        optimiser = OPTIMISERS[protocol.optimiser](protocol.momentum, protocol.weight_decay, protocol.decay_biases)
        rates = {name: factor * rate for name, rate in stage.rates.items()}
        for _ in range(stage.epochs if stage.rates else 0):
            for plain in data.epoch(clients, protocol.batch_size, orders, rngs, stage.name, head_inputs):
                batch = replace(plain, start=start)
                leaves = {name: theta[name].detach().requires_grad_() for name in stage.rates}
                loss = method.loss({**theta, **leaves}, batch)
                if loss.shape != (len(clients),):
                    raise UserError(
                        f"the loss of method {method.name!r} has shape {tuple(loss.shape)}, not one value per client "
                        f"({len(clients)},); return the mean over each client's own images (docs/add-a-method.md)."
                    )
                gradients = torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
                theta |= hooks.observe(method, theta, batch)  # before anything moves
                active = batch.mask.any(1)
                grads = clipped(dict(zip(leaves, gradients, strict=True)), limit)
                values = {name: leaf.detach() for name, leaf in leaves.items()}
                theta |= optimiser.update(values, grads, rates, active, project)
                losses += torch.where(active, loss.detach(), 0)
                steps += active
        theta |= hooks.end_stage(method, stage, theta)
    return theta, losses / steps.clamp(min=1)
