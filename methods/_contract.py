"""What a method is: a server half and a client half around a frozen backbone.

The harness owns loops, data, optimisers, random numbers, payload copies and their counting, evaluation and
checkpoints. A method says what is shared and what stays with the client, how a batch becomes a loss and how it
becomes a prediction; it overrides the server's steps only where they differ from federated averaging.

States are plain dictionaries of tensors. ``theta`` is what a client holds while it trains or predicts, downloaded and
personal tensors together, for several clients at once: every tensor has a leading axis of clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
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
    payload_formula: ClassVar[str]  # floats one client downloads and uploads in a round, in symbols
    needs: ClassVar[frozenset[str]] = frozenset(
        {"images"}
    )  # of the backbone; images, features and layer inputs fill the batch
    Params: ClassVar[type]
    paper_policy: ClassVar[str] = "global"  # of the head in its paper: local, global, global_then_ft, none
    # Whether its state has no axis of classes: then it can also score classes that nobody trained on, by their names.
    open_vocabulary: ClassVar[bool] = False
    # Whether the head reads the same in every epoch of an adaptation, so that `head_inputs` is asked once.
    fixed_inputs: ClassVar[bool] = False
    # Trained tensors through which the loss deliberately stops a gradient (a transport plan, mixing weights), and why.
    # `fedprompt check` compares the gradient of every other one with finite differences.
    stop_gradients: ClassVar[Mapping[str, str]] = {}

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

    @classmethod
    def feature_depth(cls, params: Any) -> int | None:  # noqa: ARG003
        """Blocks after which ``batch.features`` are taken (the final norm is applied in any case); None means all."""
        return None

    @classmethod
    def input_depth(cls, params: Any) -> int | None:  # noqa: ARG003
        """Blocks whose inputs ``batch.layer_inputs`` holds, if the method needs "layer inputs"; None means all."""
        return None

    # -- state ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def init_server(self, rng: torch.Generator) -> State:
        """The server's state before round 1."""

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

    def begin_evaluation(self, theta: State, batches: Iterable[Batch]) -> State:  # noqa: ARG002
        """Constants of an evaluation, computed once from what the clients hold and from their training data, which
        ``batches`` passes over; `predict` finds them in ``batch.start``."""
        return {}

    def predictions(self, theta: State, batch: Batch) -> dict[int, Tensor]:
        """Scores by the number of random draws averaged; 0 is `predict`, the only one that counts in tables.

        Others are made of the same draws, so that one training shows what more of them would bring.
        """
        return {0: self.predict(theta, batch)}

    def begin_visit(self, theta: State, round_: int) -> State:  # noqa: ARG002
        """Constants of a visit, computed once from what the clients hold at its start; found in ``batch.start``."""
        return {}

    def observe(self, theta: State, batch: Batch) -> State:  # noqa: ARG002
        """Counters as they are after this training step, from theta as the step found it; they replace theta's."""
        return {}

    def clip_norm(self) -> float | None:
        """The largest norm a client's gradient may have, over all that trains; longer ones are shortened to it."""
        return None

    def project_step(self, name: str, step: Tensor, start: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        """The optimiser's complete step (learning rate and momentum included) as it is really taken."""
        return step

    def end_visit(self, theta: State, batches: Iterable[Batch]) -> State:  # noqa: ARG002
        """Statistics of the clients' training data under what they have just trained; joins theta before the upload."""
        return {}

    def diagnostics(self, theta: State, batch: Batch) -> State:  # noqa: ARG002
        """Numbers worth a curve, (K,) each: taken after training on each client's first images, logged every round."""
        return {}

    def stages(self, epochs: int) -> Sequence[Stage]:
        """A visit's stages in order; each begins with a fresh optimiser."""
        return [Stage("train", self.rates(), epochs)]

    def end_stage(self, stage: Stage, theta: State) -> State:  # noqa: ARG002
        """Tensors of theta that change when a stage ends, such as a server's answer; they replace theta's."""
        return {}

    def adaptation(self, epochs: int) -> Stage:
        """How clients fit a copy of the head, with all else fixed, where the policy of the head says so.

        Where no policy fine-tunes, only what is personal trains.
        """
        return Stage("adapt", {k: lr for k, lr in self.rates().items() if k.startswith("head.")}, epochs)

    def head_inputs(self, theta: State, batch: Batch) -> Tensor:
        """What the head reads, (K, B, d); in stage "adapt" the batch knows it as `HEAD_INPUTS`."""
        raise NotImplementedError  # called with fixed_inputs only

    def step_floats(self) -> int:
        """Floats of one client that a step keeps for its backward pass, whatever its images: those of class texts."""
        return 0

    def newcomer_stages(self, epochs: int) -> Sequence[Stage]:  # noqa: ARG002
        """What a client that was kept out of all rounds trains of what `newcomer` sent it, before it fits its head."""
        return []

    # -- what travels ---------------------------------------------------------------------------------------------

    @abstractmethod
    def payload(self) -> tuple[int, int]:
        """Floats one client downloads and uploads in a round, by formula; the harness measures them too."""

    def first_payload(self) -> tuple[int, int]:
        """The same for a client's first visit, before the server knows it."""
        return self.payload()

    def download(self, server: State, clients: Sequence[int]) -> State:
        """What the server sends, stacked over ``clients``. The harness copies it."""
        return {name: tensor.expand(len(clients), *tensor.shape) for name, tensor in server.items()}

    def travelled(self, received: State, position: int) -> State:
        """What really was sent to one client of a stacked download: not the rows that only fill up a stack, not what
        the client has kept from its last visit. The harness counts this."""
        return {name: tensor[position] for name, tensor in received.items()}

    def newcomer(self, server: State, clients: Sequence[int]) -> State:
        """What clients kept out of all rounds are sent to begin their adaptation with, stacked."""
        return self.download(server, clients)

    def upload(self, theta: State, received: State) -> State:
        """What the clients send back, stacked. The harness copies it."""
        return {name: theta[name] for name in received}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:  # noqa: ARG002
        """The server's next state from the stacked uploads; ``weights`` (K,) sum to one."""
        return {**server, **{name: weighted_mean(stack, weights) for name, stack in uploads.items()}}


def weighted_mean(stack: Tensor, weights: Tensor) -> Tensor:
    """Mean over axis 0, summed in double precision so that equal uploads aggregate to themselves, bit for bit."""
    mean: Tensor = torch.tensordot(weights.double(), stack.double(), dims=1)
    return mean.to(stack.dtype)
