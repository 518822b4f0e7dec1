"""Servers that learn by gradients instead of averaging: the method gives gradients, the harness takes the steps."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar, NamedTuple

from torch import Tensor

from fedprompt.methods._contract import Method, State


class ServerOptimiser(NamedTuple):
    """How a server's tensors move. The protocol's schedule multiplies the rates; its other fields are for clients."""

    name: str  # `sgd`, `adam` or `adamw`
    rates: dict[str, float]  # of the server's tensors that learn
    momentum: float = 0.0  # of SGD, or Adam's first beta


class LearningServer(Method):
    """A mixin for methods that learn something at the server. What the optimiser remembers is part of checkpoints."""

    # Tensors with one row per client of the federation: rows of clients that are absent from a round stay as they are.
    client_rows: ClassVar[Collection[str]] = ()

    @abstractmethod
    def server_optimiser(self) -> ServerOptimiser:
        """What learns, how, and at which rates."""

    @abstractmethod
    def server_gradients(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        """Gradients of what learns, from the same arguments as `Method.aggregate`, whose other results stay."""
