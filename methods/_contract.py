"""What a method is: a server half and a client half around a frozen backbone.

The harness owns loops, data, optimisers, random numbers, payload copies and their counting, evaluation and
checkpoints. A method says what is shared and what stays with the client, how a batch becomes a loss and how it
becomes a prediction; it overrides `upload` and `aggregate` only where they differ from federated averaging. What few
methods need beyond that is in mixins (`_mixins.py`).

States are plain dictionaries of tensors. ``theta`` is what a client holds while it trains or predicts, downloaded and
personal tensors together, for several clients at once: every tensor has a leading axis of clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.core.errors import UserError
from fedprompt.methods._batch import Batch

State = dict[str, Tensor]


@dataclass(frozen=True)
class Task:
    """What a method may know of the problem before any round."""

    class_names: tuple[str, ...]
    train_counts: Tensor  # (clients, classes): each client's own label statistics
    head: str = "global"  # who owns the head: `local` (each client), `global` (the server) or `none` (there is none)
    examples: Tensor = field(default_factory=lambda: torch.empty(0))  # a few training images, uint8, (n, 3, h, w)
    head_input: str = "raw"  # what a linear head reads: the `raw` feature, or the `normalised` one
    rounds: int = 1  # of the whole run

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def num_clients(self) -> int:
        return len(self.train_counts)


@dataclass(frozen=True)
class Stage:
    """A part of a client's visit: which tensors train, at which learning rate, for how many epochs."""

    name: str
    rates: dict[str, float]
    epochs: int


class Method(ABC):
    """One method. Subclasses set the class variables and implement the abstract functions."""

    name: ClassVar[str]
    title: ClassVar[str]  # as tables print it
    order: ClassVar[int] = 100  # place in tables: baselines first
    paper: ClassVar[str]
    needs: ClassVar[frozenset[str]] = frozenset({"images"})  # of the backbone; what fills a batch is among it
    Params: ClassVar[type]
    paper_policy: ClassVar[str] = "global"  # of the head in its paper: local, global, global_then_ft, none
    # For readers only: floats a client receives and sends in a round besides its head, such as "T*d each way". What
    # really travels is measured.
    payload_formula: ClassVar[str] = ""

    def __init__(self, params: Any, backbone: FrozenViT, task: Task) -> None:
        self.require(backbone.name, backbone.offers)
        self.params, self.backbone, self.task = params, backbone, task

    @classmethod
    def require(cls, backbone: str, offers: frozenset[str]) -> None:
        """Refuse a backbone that lacks what the method needs."""
        missing = cls.needs - offers
        if missing:
            clip = "; use micro-clip or clip:NAME, such as clip:ViT-B-16" if "text" in missing else ""
            raise UserError(
                f"method {cls.name!r} needs {', '.join(sorted(missing))}, which backbone {backbone!r} does not "
                f"offer (it offers {', '.join(sorted(offers))}){clip}."
            )

    # -- state ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def init_server(self, rng: torch.Generator) -> State:
        """The server's state before round 1; by default all of it is sent to every client."""

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        """What ``client`` keeps to itself. ``rng`` is the same draw for every client: all start alike."""
        return {}

    # -- the client -----------------------------------------------------------------------------------------------

    @abstractmethod
    def rates(self) -> dict[str, float]:
        """The tensors of theta that train, with their learning rates; the others are constants of the visit."""

    @abstractmethod
    def loss(self, theta: State, batch: Batch) -> Tensor:
        """The training loss of each client, (K,)."""

    @abstractmethod
    def predict(self, theta: State, batch: Batch) -> Tensor:
        """Scores of the classes, (K, B, C); the largest is the prediction."""

    # -- the server -----------------------------------------------------------------------------------------------

    def upload(self, theta: State, received: State) -> State:
        """What the clients send back after training, stacked: by default what they ``received``, as it is now."""
        return {name: theta[name] for name in received}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:  # noqa: ARG002
        """The server's next state from the stacked uploads; ``weights`` (K,) sum to one."""
        return {**server, **{name: weighted_mean(stack, weights) for name, stack in uploads.items()}}


def weighted_mean(stack: Tensor, weights: Tensor) -> Tensor:
    """Mean over axis 0, summed in double precision so that equal uploads aggregate to themselves, bit for bit."""
    mean: Tensor = torch.tensordot(weights.double(), stack.double(), dims=1)
    return mean.to(stack.dtype)
