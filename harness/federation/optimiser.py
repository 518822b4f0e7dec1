"""How tensors move: optimisers for stacked clients, and schedules of their learning rates over rounds.

A fourth optimiser is one subclass of `Optimiser` in this file, and another schedule is one entry of `SCHEDULES`: the
choices of the protocol's fields are read from here.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedprompt.core.errors import unknown
from fedprompt.methods import LearningServer, State

OPTIMISERS: dict[str, type["Optimiser"]] = {}
EPSILON = 1e-8  # of Adam, as in torch

SCHEDULES: dict[str, Callable[[float], float]] = {  # the factor of all rates, by the share of the rounds that is done
    "constant": lambda done: 1.0,  # noqa: ARG005
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}


def rate_factor(schedule: str, warmup: int, rounds: int, round_: int) -> float:
    """What the learning rates are multiplied by in ``round_``, which counts from 1.

    The first ``warmup`` rounds rise linearly and stay below 1, so that a single round of warm-up has half the rate. The
    schedule spans the other rounds and would arrive at its end after the last one: no round has a rate of zero.
    """
    if round_ <= warmup:
        return round_ / (warmup + 1)
    return SCHEDULES[schedule](min(1.0, (round_ - warmup - 1) / (rounds - warmup)))


class Optimiser(ABC):
    """Moves tensors whose leading axis is the client, each slice as if it were alone.

    It remembers moments and counts of steps for every tensor. A client that is not active in a step is not touched:
    neither its tensors nor what is remembered of them change.
    """

    decoupled: ClassVar[bool] = False  # weight decay moves the tensor itself instead of joining its gradient

    def __init__(
        self, momentum: float, weight_decay: float = 0.0, decay_biases: bool = True, state: State | None = None
    ) -> None:
        """``momentum`` is the share of the past in the running gradient; ``state`` is that of an earlier one."""
        self.momentum, self.weight_decay, self.decay_biases = momentum, weight_decay, decay_biases
        self._memory: dict[str, State] = {}
        for key, tensor in (state or {}).items():
            name, _, what = key.rpartition(".")
            self._memory.setdefault(name, {})[what] = tensor

    def __init_subclass__(cls, name: str, **keywords: Any) -> None:
        """``name`` is a value of the protocol's `optimiser`."""
        super().__init_subclass__(**keywords)
        if name in OPTIMISERS:
            raise ValueError(f"there are two optimisers {name!r}: {OPTIMISERS[name].__name__} and {cls.__name__}")
        OPTIMISERS[name] = cls

    @property
    def state(self) -> State:
        """All that is remembered, for a checkpoint."""
        return {f"{name}.{what}": tensor for name, memory in self._memory.items() for what, tensor in memory.items()}

    @abstractmethod
    def fresh(self, value: Tensor) -> State:
        """What is remembered of a tensor before its first step, with the same leading axis."""

    @abstractmethod
    def direction(self, grad: Tensor, memory: State) -> tuple[Tensor, State]:
        """What a learning rate of 1 subtracts, and the memory after this step."""

    def update(
        self,
        values: Mapping[str, Tensor],
        grads: Mapping[str, Tensor | None],
        rates: Mapping[str, float],
        active: Tensor,  # (K,) bool
        project: Callable[[str, Tensor], Tensor] = lambda _, step: step,
    ) -> State:
        """The tensors that have a rate, after a step; ``project`` may change the step before it is taken.

        Where the loss does not reach a tensor, its gradient is None and it only decays.
        """
        moved = {}
        for name, rate in rates.items():
            value, grad = values[name], grads[name]
            decay = self.weight_decay if self.decay_biases or name.rpartition(".")[2] != "bias" else 0.0
            slope = torch.zeros_like(value) if grad is None else grad
            if decay and not self.decoupled:
                slope = decay * value + slope
            before = self._memory[name] if name in self._memory else self.fresh(value)
            direction, after = self.direction(slope, before)
            self._memory[name] = {what: _where(active, after[what], before[what]) for what in before}
            step = -rate * direction
            if decay and self.decoupled:
                step = step - rate * decay * value
            moved[name] = _where(active, value + project(name, step), value)
        return moved


class SGD(Optimiser, name="sgd"):
    """With heavy-ball momentum, as in torch: the running gradient is a sum, not a mean."""

    def fresh(self, value: Tensor) -> State:
        return {"momentum": torch.zeros_like(value)} if self.momentum else {}

    def direction(self, grad: Tensor, memory: State) -> tuple[Tensor, State]:
        if not memory:
            return grad, {}
        running = self.momentum * memory["momentum"] + grad
        return running, {"momentum": running}


class Adam(Optimiser, name="adam"):
    """``momentum`` is the first beta; the second has its usual value. Weight decay joins the gradient."""

    square_momentum: ClassVar[float] = 0.999

    def fresh(self, value: Tensor) -> State:
        steps = torch.zeros(len(value), dtype=torch.float64, device=value.device)  # float32 would blur the corrections
        return {"mean": torch.zeros_like(value), "square": torch.zeros_like(value), "steps": steps}

    def direction(self, grad: Tensor, memory: State) -> tuple[Tensor, State]:
        first, second, steps = self.momentum, self.square_momentum, memory["steps"] + 1
        mean = torch.lerp(memory["mean"], grad, 1 - first)
        square = second * memory["square"] + (1 - second) * grad.square()
        scale = _along(1 / (1 - first**steps), grad)
        size = square.sqrt() / _along((1 - second**steps).sqrt(), grad) + EPSILON
        return scale * mean / size, {"mean": mean, "square": square, "steps": steps}


class AdamW(Adam, name="adamw"):
    """Adam whose weight decay leaves the moments alone."""

    decoupled = True


def clipped(grads: Mapping[str, Tensor | None], limit: float | None) -> Mapping[str, Tensor | None]:
    """Gradients of clients whose own norm, over all tensors together, exceeds ``limit``, shortened to it."""
    present = [grad.flatten(1).square().sum(1) for grad in grads.values() if grad is not None]
    if limit is None or not present:
        return grads
    factor = (limit / torch.stack(present).sum(0).sqrt().clamp(min=1e-30)).clamp(max=1)
    return {name: None if grad is None else grad * _along(factor, grad) for name, grad in grads.items()}


def learn(
    method: LearningServer, server: State, gradients: State, state: State, cohort: Sequence[int], factor: float
) -> tuple[State, State]:
    """What the server learns after a step along ``gradients``, and the optimiser's state after it.

    Rows of clients that are not in the ``cohort`` stay as they are, and so does what is remembered of them.
    """
    recipe = method.server_optimiser()
    if recipe.name not in OPTIMISERS:
        raise unknown("optimiser", recipe.name, OPTIMISERS)
    optimiser = OPTIMISERS[recipe.name](recipe.momentum, state=state)
    new: State = {}
    for name, rate in recipe.rates.items():
        value, grad, per_client = server[name], gradients[name], name in method.client_rows
        if not per_client:
            value, grad = value[None], grad[None]
        active = torch.ones(len(value), dtype=torch.bool, device=value.device)
        if per_client:
            active = torch.zeros_like(active).index_fill(0, torch.tensor(cohort, device=value.device), True)
        (moved,) = optimiser.update({name: value}, {name: grad}, {name: factor * rate}, active).values()
        new[name] = moved if per_client else moved[0]
    return new, optimiser.state


def _along(per_client: Tensor, like: Tensor) -> Tensor:
    """A number of each client, to be multiplied with its slice of ``like``."""
    return per_client.view(-1, *[1] * (like.dim() - 1)).to(like.dtype)


def _where(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(active.view(-1, *[1] * (new.dim() - 1)), new, old)
