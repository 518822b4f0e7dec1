"""What only some methods need, one mixin per purpose: ``class SGPT(HeadedMethod, Stages, Steps)``.

The harness calls the hooks of a mixin only where a method derives from it (`fedprompt.harness.federation.hooks`), and
the registry refuses a method that defines one of them without the mixin.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import Method, Stage, State
from fedprompt.methods._server_learning import LearningServer


def stacked(state: State, clients: Sequence[int]) -> State:
    """The same tensors for each of ``clients``."""
    return {name: tensor.expand(len(clients), *tensor.shape) for name, tensor in state.items()}


def adaptation_stage(method: Method, epochs: int) -> Stage:
    """How clients fit a copy of what they hold where the head's policy says so: the head, or without one, all that
    trains."""
    headless = method.paper_policy.startswith("none")
    rates = {name: rate for name, rate in method.rates().items() if headless or name.startswith("head.")}
    return Stage("adapt", rates, epochs)


class Stages(Method):
    """For visits of several parts, or with something to do at the end of a part.

    ``return [Stage("shared", shared_rates, epochs), Stage("group", group_rates, epochs)]``
    """

    def stages(self, epochs: int) -> Sequence[Stage]:
        """A visit's stages in order; each begins with a fresh optimiser. ``batch.stage`` names the present one."""
        return [Stage("train", self.rates(), epochs)]

    def end_stage(self, stage: Stage, theta: State) -> State:  # noqa: ARG002
        """Tensors of theta that change when a stage ends, such as a count of epochs; they replace theta's."""
        return {}

    def adaptation(self, epochs: int) -> Stage:
        """What clients fit on a copy before they are evaluated, where the head's policy says so.

        By default the head, or all that trains where there is none; where nothing is fine-tuned, the harness leaves
        what is shared alone.
        """
        return adaptation_stage(self, epochs)


class Steps(Method):
    """For steps that are more than the optimiser's: limited, projected, or counted.

    ``return step - step @ start["basis"] @ start["basis"].mT``
    """

    def clip_norm(self) -> float | None:
        """The largest norm a client's gradient may have, over all that trains; longer ones are shortened to it."""
        return None

    def project_step(self, name: str, step: Tensor, start: Mapping[str, Tensor]) -> Tensor:  # noqa: ARG002
        """The optimiser's complete step of tensor ``name`` (rate and momentum included) as it is really taken.

        ``start`` is what ``batch.start`` holds in this visit.
        """
        return step

    def observe(self, theta: State, batch: Batch) -> State:  # noqa: ARG002
        """Counters as they are after this training step, from theta as the step found it; they replace theta's."""
        return {}


class Constants(Method):
    """For what is computed once per visit or evaluation rather than in every batch.

    ``return {"texts": self.encode(theta["context"])}``, then ``batch.start["texts"]`` in `loss` or `predict`.
    """

    def begin_visit(self, theta: State, round_: int) -> State:  # noqa: ARG002
        """Constants of a visit, from what the clients hold at its start; they join theta in ``batch.start``."""
        return {}

    def begin_evaluation(self, theta: State, batches: Iterable[Batch]) -> State:  # noqa: ARG002
        """Constants of an evaluation, from what the clients hold and from their training data, which ``batches`` passes
        over; `predict` finds them in ``batch.start``."""
        return {}


class Statistics(Method):
    """For uploads that need a pass over the training data after the last step, such as prototypes.

    ``return {"sums": sums, "counts": counts}``, then name them in `upload`.
    """

    def end_visit(self, theta: State, batches: Iterable[Batch]) -> State:  # noqa: ARG002
        """Statistics of the clients' training data under what they have just trained; joins theta before the upload."""
        return {}


class Downloads(Method):
    """For servers that send something other than their state: a generated prompt, a mixture, other clients' prompts.

    ``return {"prompt": self.generate(server, server["descriptors"][list(clients)])}``
    """

    def download(self, server: State, clients: Sequence[int]) -> State:
        """What the server sends, stacked over ``clients``. The harness copies it."""
        return stacked(server, clients)

    def sent_tensors(self, received: State, position: int) -> State:
        """What was really sent to one client of a stacked download: not the rows that only fill up a stack, not what
        the client has kept from its last visit. The harness counts this."""
        return {name: tensor[position] for name, tensor in received.items()}


class OneByOne(Method):
    """For rounds in which clients train one after the other, in the order that they were drawn in, and a client begins
    with what the one before it left.

    ``return {"counts": sent["counts"] + upload["counts"]}``
    """

    def is_one_by_one(self) -> bool:
        """Whether the parameters ask for it; if not, clients train together and nothing is handed on."""
        return True

    def hand_on(self, sent: State, upload: State) -> State:  # noqa: ARG002
        """What the next client of the round finds in the server's state, from what a client was ``sent`` of it and its
        ``upload``; neither is stacked. When the round ends it is forgotten: only uploads reach `aggregate`."""
        return {}


class UnseenClients(Method):
    """For clients kept out of all rounds that begin with something else, or train more than a head at the end.

    ``return [Stage("descriptor", {"descriptor": self.params.gen_lr}, epochs)]``
    """

    def unseen_download(self, server: State, clients: Sequence[int]) -> State:
        """What unseen clients are sent, stacked; by default what others are."""
        return self.download(server, clients) if isinstance(self, Downloads) else stacked(server, clients)

    def unseen_stages(self, epochs: int) -> Sequence[Stage]:  # noqa: ARG002
        """What an unseen client trains of what it was sent, before it fits its head."""
        return []


class SeveralDraws(Method):
    """For predictions averaged over random draws, where one training shows what more draws would bring.

    ``return {0: self.predict(theta, batch), 1: ..., 2: ...}``
    """

    def predictions(self, theta: State, batch: Batch) -> dict[int, Tensor]:
        """Scores by the number of draws averaged; 0 is `predict`, the only one that counts in tables."""
        return {0: self.predict(theta, batch)}


class Diagnostics(Method):
    """For numbers worth a curve: ``return {"spread": theta["scale"].mean(1)}``."""

    def diagnostics(self, theta: State, batch: Batch) -> State:  # noqa: ARG002
        """Numbers, (K,) each: taken after training on each client's first images, logged every round."""
        return {}


class FrozenDepth(Method):
    """For methods that read frozen features or tokens of fewer than all blocks: ``return params.query_blocks``."""

    @classmethod
    def feature_depth(cls, params: Any) -> int | None:  # noqa: ARG003
        """Blocks after which ``batch.features`` are taken (the final norm is applied in any case); None means all."""
        return None

    @classmethod
    def input_depth(cls, params: Any) -> int | None:  # noqa: ARG003
        """Blocks whose inputs ``batch.layer_inputs`` holds, if the method needs "layer inputs"; None means all."""
        return None


class OpenVocabulary(Method):
    """For methods whose state has no axis of classes: they can also score classes, by name, that nobody trained on."""

    open_vocabulary: ClassVar[bool] = True  # a subclass whose state does depend on the classes sets it to False


class StopGradients(Method):
    """For a loss that deliberately stops a gradient, through a transport plan or mixing weights.

    ``stop_gradients = {"prompt": "it moves the query, and the mixing weights are constants"}``
    """

    # Trained tensors and the reason; `fedprompt check` compares the gradient of all others with finite differences.
    stop_gradients: ClassVar[Mapping[str, str]] = {}


MIXINS: tuple[type[Method], ...] = (
    *(Stages, Steps, Constants, Statistics, Downloads, OneByOne, UnseenClients, LearningServer),
    *(SeveralDraws, Diagnostics, FrozenDepth, OpenVocabulary, StopGradients),
)


def missing_mixin(method: type[Method]) -> tuple[str, type[Method]] | None:
    """A hook that ``method`` defines but the harness would never call, and the mixin that it should derive from."""
    for mixin in MIXINS:
        for hook in vars(mixin):
            if not hook.startswith("_") and hasattr(method, hook) and not issubclass(method, mixin):
                return hook, mixin
    return None
