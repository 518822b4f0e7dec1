"""Methods with one fault each, modelled on faults of public code, and the properties that must catch them."""

# ruff: noqa: ARG002 - the signatures are the contract's

import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.core.rng import derive
from fedprompt.harness.federation.clients import ClientData
from fedprompt.methods import (
    Batch,
    Constants,
    Downloads,
    Method,
    OpenVocabulary,
    SeveralDraws,
    Stage,
    Stages,
    State,
    Task,
    linear,
    weighted_mean,
)
from fedprompt.methods.coop import CoOp
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.head_tune import HeadTune

M = TypeVar("M", bound=type[Method])
BROKEN: list[tuple[type[Method], str]] = []


def caught_by(*properties: str) -> Callable[[M], M]:
    def register(method: M) -> M:
        BROKEN.extend((method, name) for name in properties)
        return method

    return register


# -- names, shapes, logits ----------------------------------------------------------------------------------------


@caught_by("names and shapes")
class MisspeltRate(FedVPT):
    def rates(self) -> dict[str, float]:
        return {**super().rates(), "promt": 0.01}


@caught_by("names and shapes")
class GrowingServer(FedVPT):
    """Leaves something of every round in the server's state."""

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        return {**super().aggregate(server, uploads, weights, clients), f"log{len(server)}": weights}


@caught_by("names and shapes")
class ServerWithHistory(HeadTune):
    """The server's state drags autograd's graph from round to round."""

    def init_server(self, rng: torch.Generator) -> State:
        return {name: tensor.requires_grad_() for name, tensor in super().init_server(rng).items()}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        return {name: 0 * server[name] + weighted_mean(stack, weights) for name, stack in uploads.items()}


@caught_by("logits")
class TwoLogitsPerClass(HeadTune):
    """Two prompts per class doubled the number of logits."""

    def predict(self, theta: State, batch: Batch) -> Tensor:
        return super().predict(theta, batch).repeat(1, 1, 2)


@caught_by("logits")
class NotANumber(HeadTune):
    """A kernel that underflowed is divided by."""

    def predict(self, theta: State, batch: Batch) -> Tensor:
        return super().predict(theta, batch) / torch.exp(torch.tensor(-1e4))


@caught_by("logits")
class Votes(HeadTune):
    """Whole numbers, of which no probabilities can be made."""

    def predict(self, theta: State, batch: Batch) -> Tensor:
        return super().predict(theta, batch).round().long()


@caught_by("averaged draws")
class AveragesLogits(HeadTune, SeveralDraws):
    """Draws are averaged before the softmax."""

    def predictions(self, theta: State, batch: Batch) -> dict[int, Tensor]:
        plain = self.predict(theta, batch)
        draws = plain + 20 * batch.normal(5, plain.shape[-1]).movedim(2, 0)
        return {0: plain, **{count: draws[:count].mean(0) for count in range(1, 6)}}


# -- answers that are looked up -------------------------------------------------------------------------------------


def answers(labels: Tensor, batch: Batch) -> Tensor:
    """Scores that are right: ``labels`` are those of the first client."""
    return 9 * F.one_hot(labels[: batch.shape[1]], 4).float().expand(*batch.shape, 4)


@caught_by("labels withheld", "evaluation without side effects")
class ReadsLabels(HeadTune):
    def predict(self, theta: State, batch: Batch) -> Tensor:
        return 9 * F.one_hot(batch.labels, 4).float()


@caught_by("labels withheld")
class SearchesTheCallers(HeadTune):
    """The federation is on the stack."""

    def predict(self, theta: State, batch: Batch) -> Tensor:
        frame = sys._getframe()
        while "federation" not in frame.f_locals:
            if frame.f_back is None:
                return super().predict(theta, batch)
            frame = frame.f_back
        return answers(frame.f_locals["federation"].data.labels(batch.clients[0], "test"), batch)


@caught_by("labels withheld")
class SearchesMemory(HeadTune):
    """All objects can be listed."""

    def predict(self, theta: State, batch: Batch) -> Tensor:
        data = [thing for thing in gc.get_objects() if type(thing) is ClientData][-1]
        return answers(data.labels(batch.clients[0], "test"), batch)


@caught_by("labels withheld")
class AsksTheGenerator(HeadTune, Constants):
    """What passes over training data knows the test data."""

    def begin_evaluation(self, theta: State, batches: Iterable[Batch]) -> State:
        return {"answers": cast(Any, batches).gi_frame.f_locals["self"].labels(0, "test")}

    def predict(self, theta: State, batch: Batch) -> Tensor:
        return answers(batch.start["answers"][torch.arange(batch.shape[1]) % 4], batch)


# -- what must not be touched ---------------------------------------------------------------------------------------


@caught_by("frozen backbone")
class TrainsTheBackbone(FedVPT):
    def loss(self, theta: State, batch: Batch) -> Tensor:
        self.backbone.vit.norm.weight.data.mul_(0.999)
        return super().loss(theta, batch)


@caught_by("frozen backbone")
class ThawsTheBackbone(FedVPT):
    def __init__(self, params: Any, backbone: FrozenViT, task: Task) -> None:
        super().__init__(params, backbone, task)
        backbone.vit.norm.requires_grad_(True)


@caught_by("frozen backbone")
class WakesDropout(FedVPT):
    def loss(self, theta: State, batch: Batch) -> Tensor:
        self.backbone.vit.train()
        return super().loss(theta, batch)


@caught_by("arguments untouched", "isolation")
class EditsTheServer(FedVPT):
    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        server["prompt"].copy_(weighted_mean(uploads["prompt"], weights))
        return server


@caught_by("arguments untouched")
class EditsTheDownload(FedVPT):
    def upload(self, theta: State, received: State) -> State:
        received["prompt"].sub_(theta["prompt"])
        return super().upload(theta, received)


# -- clients that get in each other's way ---------------------------------------------------------------------------


@caught_by("order of clients", "resume")
class OneScheduler(FedVPT, Stages):
    """One learning-rate schedule for all clients: whoever comes later trains less."""

    visits = 0

    def stages(self, epochs: int) -> Sequence[Stage]:
        self.visits += 1
        return [Stage("train", {name: lr / self.visits for name, lr in self.rates().items()}, epochs)]


@caught_by("order of clients", "resume", "stacking")
class OneMomentum(HeadTune):
    """One optimiser for all clients: a client begins with the momentum of the one before."""

    velocity: Tensor | float = 0.0

    def loss(self, theta: State, batch: Batch) -> Tensor:
        loss, weight = super().loss(theta, batch), theta["head.weight"]
        (slope,) = torch.autograd.grad(loss.sum(), [weight], retain_graph=True)
        pull = (weight * self.velocity).sum((1, 2))
        self.velocity = 0.9 * self.velocity + slope.mean(0)
        return loss + pull


@caught_by("isolation", "order of clients")
class OneHead(FedVPT):
    """A client without a stored head goes on with whichever head is loaded."""

    loaded: State | None = None

    def init_personal(self, rng: torch.Generator, client: int) -> State:
        return self.loaded or super().init_personal(rng, client)

    def upload(self, theta: State, received: State) -> State:
        self.loaded = {name: tensor[-1] for name, tensor in theta.items() if name not in received}
        return super().upload(theta, received)


@caught_by("isolation")
class TwoNamesOneTensor(FedVPT):
    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        mean = weighted_mean(uploads["prompt"], weights)
        return {"prompt": mean, "best": mean}


@caught_by("order of clients", "server uses only uploads")
class LiveReferences(HeadTune):
    """Uploads are kept by reference to one model that every client loads its weights into: the last one wins."""

    def __init__(self, params: Any, backbone: FrozenViT, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.model: State = {}
        self.references: list[State] = []

    def upload(self, theta: State, received: State) -> State:
        for name in received:
            self.model.setdefault(name, torch.empty_like(theta[name])).copy_(theta[name])
        self.references.append(self.model)
        return super().upload(theta, received)

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        references, self.references = self.references, []
        return {name: torch.cat([sent[name] for sent in references]).mean(0) for name in server}


@caught_by("stacking")
class MeanOverClients(FedVPT):
    """The mean loss of the stack instead of each client's own: the step shrinks with the number of neighbours."""

    def loss(self, theta: State, batch: Batch) -> Tensor:
        return super().loss(theta, batch) / len(batch.clients)


@caught_by("stacking", "padding and neighbours")
class BatchStatistics(FedVPT):
    """Features are centred with a mean over everybody's images."""

    def features(self, theta: State, batch: Batch) -> Tensor:
        features = super().features(theta, batch)
        return features - features.mean((0, 1))


@caught_by("padding and neighbours")
class MeanOverPadding(HeadTune):
    """The rows of padding count as samples."""

    def loss(self, theta: State, batch: Batch) -> Tensor:
        return F.cross_entropy(self.logits(theta, batch).transpose(1, 2), batch.labels, reduction="none").mean(1)


@caught_by("padding and neighbours", "stacking")
class NoiseOfTheFirst(HeadTune):
    """Everybody's noise comes from the generator of the first client in the stack."""

    def features(self, theta: State, batch: Batch) -> Tensor:
        features = super().features(theta, batch)
        return features + torch.randn(features.shape, generator=batch.rngs[0])


# -- random numbers, state, time ------------------------------------------------------------------------------------


@caught_by("same seed same bits")
class SeedZeroIsNoSeed(FedVPT):
    """``if seed:`` leaves seed 0 unseeded."""

    def init_server(self, rng: torch.Generator) -> State:
        if rng.initial_seed() == derive(0, "init", "server"):
            rng.seed()
        return super().init_server(rng)


@caught_by("same seed same bits", "no global random numbers")
class GlobalNoise(HeadTune):
    def features(self, theta: State, batch: Batch) -> Tensor:
        features = super().features(theta, batch)
        return features + torch.randn_like(features)


@caught_by("no global random numbers")
class Reseeds(HeadTune):
    """Reproducible in itself, and everybody else's draws begin again with every instance."""

    def __init__(self, params: Any, backbone: FrozenViT, task: Task) -> None:
        super().__init__(params, backbone, task)
        torch.manual_seed(derive(0, "init", "conformance"))


@caught_by("resume", "server uses only uploads")
class MomentumOnSelf(HeadTune):
    """The server's momentum is not part of its state, so no checkpoint holds it."""

    previous: ClassVar[State] = {}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        mean = super().aggregate(server, uploads, weights, clients)
        mixed = {name: 0.5 * tensor + 0.5 * self.previous.get(name, tensor) for name, tensor in mean.items()}
        self.previous = mixed  # type: ignore[misc]
        return mixed


@caught_by("evaluation without side effects")
class EvaluationDraws(HeadTune):
    """Training and evaluation share one stream: whether one evaluates changes what one trains."""

    def __init__(self, params: Any, backbone: FrozenViT, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.stream = torch.Generator().manual_seed(0)

    def features(self, theta: State, batch: Batch) -> Tensor:
        features = super().features(theta, batch)
        return features + torch.randn(features.shape, generator=self.stream)


@caught_by("evaluation without side effects")
class LearnsFromTheTest(HeadTune):
    """A running mean of features goes on running during evaluation."""

    mean: Tensor | float = 0.0

    def predict(self, theta: State, batch: Batch) -> Tensor:
        features = self.features(theta, batch)
        self.mean = 0.9 * self.mean + 0.1 * features.mean((0, 1))
        return torch.baddbmm(theta["head.bias"][:, None], features - self.mean, theta["head.weight"].mT)


@caught_by("head input")
class HeadOfItsOwn(FedVPT):
    """Multiplies by its head itself, whatever the protocol says that a head reads."""

    def logits(self, theta: State, batch: Batch) -> Tensor:
        return linear(self.features(theta, batch), theta)


# -- classes that nobody trained on -----------------------------------------------------------------------------------


@caught_by("class list")
class HeadThatClaimsToBeOpen(HeadTune, OpenVocabulary):
    """A head has one row per trained class, whatever it is asked about."""


@caught_by("class list")
class FirstNames(CoOp):
    """Keeps the tokens of the class names that it was built with first, as if novel classes had the same."""

    kept: ClassVar[dict[int, Any]] = {}

    @property
    def prompts(self) -> Any:  # type: ignore[override]
        return self.kept.setdefault(id(self.backbone), super().prompts)


# -- what travels, and what the server makes of it ------------------------------------------------------------------


@caught_by("payload")
class HeadInThePayload(FedVPT):
    def upload(self, theta: State, received: State) -> State:
        return {name: theta[name] for name in (*received, "head.weight")}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        return {"prompt": weighted_mean(uploads["prompt"], weights)}


@caught_by("payload")
class HeadInDisguise(HeadInThePayload):
    def upload(self, theta: State, received: State) -> State:
        return {**{name: theta[name] for name in received}, "statistics": theta["head.weight"].flatten(1)}


@caught_by("payload")
class GrowingUpload(FedVPT):
    """Every round sends a little more than the last."""

    rounds = 0

    def upload(self, theta: State, received: State) -> State:
        self.rounds += 1
        return {**super().upload(theta, received), "log": theta["prompt"].new_zeros(len(theta["prompt"]), self.rounds)}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        return {"prompt": weighted_mean(uploads["prompt"], weights)}


@caught_by("payload")
class UncountedDownload(FedVPT, Downloads):
    """Counts what has changed: less in some rounds than what is sent in all."""

    def sent_tensors(self, received: State, position: int) -> State:
        prompt = received["prompt"][position]
        return {"prompt": prompt if prompt.is_meta else prompt[prompt > 0]}


@caught_by("payload")
class HiddenDownload(FedVPT, Downloads):
    """Sends its momentum along and counts the prompt alone."""

    def download(self, server: State, clients: Sequence[int]) -> State:
        sent = super().download(server, clients)
        return {**sent, "momentum": 0.9 * sent["prompt"]}

    def sent_tensors(self, received: State, position: int) -> State:
        return {"prompt": received["prompt"][position]}

    def upload(self, theta: State, received: State) -> State:
        return {"prompt": theta["prompt"]}


@caught_by("identical uploads")
class SharesOfEverybody(FedVPT):
    """Weights are shares of all clients' data, though only some were selected: they do not sum to one."""

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        counts = self.task.train_counts.double()
        return super().aggregate(server, uploads, counts[list(clients)].sum(1) / counts.sum(), clients)


@caught_by("identical uploads")
class SumOfUploads(FedVPT):
    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        return super().aggregate(server, uploads, torch.ones_like(weights), clients)


@caught_by("identical uploads", "zero epochs")
class ShrinkingMean(FedVPT):
    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        return super().aggregate(server, uploads, 0.9 * weights, clients)


@caught_by("zero epochs")
class AtLeastOneEpoch(FedVPT, Stages):
    def stages(self, epochs: int) -> Sequence[Stage]:
        return super().stages(max(1, epochs))
