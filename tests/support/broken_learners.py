"""Broken methods, continued: those that do not learn what they seem to learn, and adapt what they should not."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fedprompt.backbones.backbone import FrozenViT, insert, shallow
from fedprompt.methods import Batch, Downloads, State, Task
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.fedvpt_d import FedVPTDeep
from fedprompt.methods.head_tune import HeadTune
from support.broken_methods import caught_by


@caught_by("trainable tensors move")
class DeepPromptsWithoutEffect(FedVPTDeep):
    """The tokens with the prompts are built under a misspelt name; the block gets the old ones."""

    def features(self, theta: State, batch: Batch) -> Tensor:
        prompts = batch.rows(theta["prompts"])

        def edit(block: int, tokens: Tensor) -> Tensor:
            _token = insert(tokens, prompts[:, block])
            return tokens

        return batch.pad(self.backbone.cls(batch.images, edit))


@caught_by("trainable tensors move")
class PromptFromTheSnapshot(FedVPT):
    """A visit runs on a detached copy of the prompt; only the head learns."""

    def features(self, theta: State, batch: Batch) -> Tensor:
        return batch.pad(self.backbone.cls(batch.images, shallow(batch.rows(theta["prompt"].detach()))))


@caught_by("gradient matches the loss")
class DetachedPenalty(FedVPT):
    """FedProx whose proximal term is read from a state dict: it is in the printed loss and in no gradient."""

    def loss(self, theta: State, batch: Batch) -> Tensor:
        distance = (theta["prompt"].detach() - batch.start["prompt"]).square().sum((1, 2))
        return super().loss(theta, batch) + 0.25 * distance


@caught_by("loss falls")
class WrongSign(HeadTune):
    """The server walks away from what its clients found."""

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        mean = super().aggregate(server, uploads, weights, clients)
        return {name: 2 * server[name] - mean[name] for name in server}


@caught_by("unseen and never sampled", "arguments untouched")
class AdaptationDrifts(FedVPT):
    """Adapting the head moves the shared prompt as well."""

    def loss(self, theta: State, batch: Batch) -> Tensor:
        if batch.stage == "adapt":
            theta["prompt"].mul_(0.9)
        return super().loss(theta, batch)


@caught_by("unseen and never sampled")
class AdaptationReachesTheServer(FedVPT, Downloads):
    def download(self, server: State, clients: Sequence[int]) -> State:
        self.server = server
        return super().download(server, clients)

    def loss(self, theta: State, batch: Batch) -> Tensor:
        if batch.stage == "adapt":
            self.server["prompt"].mul_(0.9)
        return super().loss(theta, batch)


@caught_by("unseen and never sampled")
class OnlyKnownClients(FedVPT):
    """Predicts only for clients it has trained."""

    def __init__(self, params: Any, backbone: FrozenViT, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.known: dict[int, int] = {}

    def loss(self, theta: State, batch: Batch) -> Tensor:
        self.known.update({client: client for client in batch.clients})
        return super().loss(theta, batch)

    def predict(self, theta: State, batch: Batch) -> Tensor:
        assert [self.known[client] for client in batch.clients]
        return super().predict(theta, batch)
