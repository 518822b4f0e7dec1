"""How a federation is run and measured: the same for every method of a table."""

from dataclasses import dataclass
from typing import Literal

from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.harness.federation.optimiser import OPTIMISERS, SCHEDULES, rate_factor


@dataclass(frozen=True)
class Protocol:
    rounds: int = option(100, "communication rounds R", low=1, paper="100")
    epochs: int = option(5, "local epochs E of a visit", low=0, paper="5")
    batch_size: int = option(64, "images in a local step; the last partial batch is kept", low=1)
    participation: float = option(1.0, "share of the clients selected each round", low=0, high=1, paper="1 / 0.05")
    optimiser: str = option(
        "sgd", "how gradients become steps; its state lives for one stage of a visit", choices=OPTIMISERS
    )
    momentum: float = option(0.9, "SGD's momentum, or Adam's first beta", low=0, high=1)
    weight_decay: float = option(1e-5, "weight decay of everything that trains", low=0)
    decay_biases: bool = option(
        True, "whether weight decay also acts on biases: tensors named `bias`, such as head.bias"
    )
    schedule: str = option(
        "constant", "how learning rates change over the rounds; cosine falls towards zero", choices=SCHEDULES
    )
    warmup: int = option(0, "first rounds, in which the learning rates rise linearly", low=0)
    clip: float = option(
        0.0,
        "the largest norm of a client's gradient over all that trains, 0 for none; where a method has a limit of its "
        "own, the smaller one counts",
        low=0,
    )
    head_input: str = option(
        "raw",
        "what a linear head reads: the feature, or the feature after layer norm without parameters; methods with text "
        "have no head and compare normalised features in any case",
        choices=("raw", "normalised"),
    )
    agg_weights: str = option("samples", "weights of the server's mean", choices=("samples", "uniform"))
    head: str = option(
        "paper",
        "who owns the head while clients train: each client, the server, nobody (methods without a head), or whoever "
        "does in the method's paper",
        choices=("paper", "local", "global", "none"),
    )
    finetune_epochs: int = option(
        0,
        "if > 0, every evaluation is also read after each client has fine-tuned a copy of the global head so long (of "
        "its prompt, where the method has no head)",
        low=0,
    )
    never_sampled: str = option(
        "finetune",
        "clients that never took part: fit their private part (a local head) on a copy, leave out of the averages, or "
        "evaluate as is",
        choices=("finetune", "exclude", "as_is"),
    )
    eval_point: str = option(
        "post_agg",
        "evaluate with the new server state, or with what the client last trained",
        choices=("post_agg", "post_local"),
    )
    mask_local_classes: bool = option(False, "restrict predictions to the classes of the client's training data")
    last: int = option(10, "reported values are means over this many last rounds (or all, if fewer)", low=1, paper="10")
    eval_every: int = option(10, "earlier rounds are evaluated on this grid, for the curves", low=1)
    val_fraction: float = option(
        0.0,
        "share of each client's training data held out; if > 0, it is evaluated instead of the test data",
        low=0,
        high=0.9,
    )
    sweep: bool = option(
        False, "in reported rounds also count what other numbers of random draws predict, where a method averages some"
    )
    precision: str = option(
        "fp32",
        "number format of passes on a GPU: full, TF32 in matrix products, or bfloat16 where autocast allows it",
        choices=("fp32", "tf32", "bf16"),
    )
    stack: int = option(0, "clients trained in one pass; 0 chooses by the memory a step needs", low=0)

    def __post_init__(self) -> None:
        if self.finetune_epochs and self.head == "local":
            raise UserError(
                f"protocol: finetune_epochs = {self.finetune_epochs} fine-tunes a global head, but head = 'local'; "
                "set head=global or finetune_epochs=0."
            )
        if self.warmup >= self.rounds:
            raise UserError(
                f"protocol: warmup = {self.warmup} leaves none of rounds = {self.rounds} at the full learning rate; "
                f"use at most {self.rounds - 1}."
            )
        if self.momentum == 1 and self.optimiser != "sgd":
            raise UserError(
                f"protocol: with momentum = 1, {self.optimiser} ignores every gradient; use less, such as 0.9."
            )

    @property
    def evaluated_split(self) -> Literal["test", "val"]:
        """Test data, or the held-out part of the training data where there is one."""
        return "val" if self.val_fraction else "test"

    def rate_factor(self, round_: int) -> float:
        """What all learning rates are multiplied by in the round."""
        return rate_factor(self.schedule, self.warmup, self.rounds, round_)

    def evaluated(self, round_: int) -> bool:
        """Rounds count from 1. The last ones are reported; the grid shows the way there."""
        return self.reported(round_) or round_ % self.eval_every == 0

    def reported(self, round_: int) -> bool:
        """Whether the round is one of those whose mean is reported."""
        return round_ in reported_rounds(self.rounds, self.last)

    def swept(self, round_: int) -> bool:
        """Whether other numbers of draws are counted in the round, too."""
        return self.sweep and self.reported(round_)


def reported_rounds(rounds: int, last: int) -> range:
    """The rounds whose mean is reported: the last ones, or all where there are fewer."""
    return range(max(1, rounds - last + 1), rounds + 1)
