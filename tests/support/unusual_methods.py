"""Right methods of unusual build: the properties must hold for them too."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.methods import (
    Batch,
    Downloads,
    LearningServer,
    ServerOptimiser,
    Stage,
    Stages,
    State,
    prompt_init,
    shallow,
)
from fedprompt.methods.fedvpt import FedVPT


def _head(tensors: State) -> State:
    return {name: tensor for name, tensor in tensors.items() if name.startswith("head.")}


class Generator(FedVPT, LearningServer, Downloads):
    """The server keeps a generator and one descriptor per client; what it sends is generated for each client."""

    client_rows = ("descriptors",)

    def init_server(self, rng: torch.Generator) -> State:
        width, shared = self.backbone.width, super().init_server(rng)
        return {
            "base": shared.pop("prompt"),
            **shared,
            "map": torch.randn(width, width, generator=rng) / width,
            "descriptors": torch.randn(self.task.num_clients, width, generator=rng),
        }

    def _generate(self, server: State, clients: Sequence[int]) -> Tensor:
        return server["base"] + (server["descriptors"][list(clients)] @ server["map"])[:, None]

    def download(self, server: State, clients: Sequence[int]) -> State:
        return {"prompt": self._generate(server, clients), **super().download(_head(server), clients)}

    def upload(self, theta: State, received: State) -> State:
        return {"step": received["prompt"] - theta["prompt"], **{name: theta[name] for name in _head(received)}}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        return super().aggregate(server, _head(uploads), weights, clients)

    def server_optimiser(self) -> ServerOptimiser:
        return ServerOptimiser("sgd", dict.fromkeys(("base", "map", "descriptors"), 0.1))

    def server_gradients(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        leaves = {name: server[name].clone().requires_grad_() for name in ("base", "map", "descriptors")}
        with torch.enable_grad():
            pull = (self._generate(leaves, clients) * uploads["step"]).sum((1, 2)) @ weights.to(uploads["step"])
        return dict(zip(leaves, torch.autograd.grad(pull, list(leaves.values())), strict=True))


class Groups(FedVPT, Stages):
    """Two stages: the shared prompt, then one of several group prompts chosen by keys; the server mixes old and new."""

    def init_prompts(self, rng: torch.Generator) -> State:
        width, patch = self.backbone.width, self.backbone.patch_size
        return {
            "prompt": torch.zeros(2, width),
            "groups": prompt_init((20, width), patch, rng),
            "keys": torch.randn(20, width, generator=rng),
        }

    def stages(self, epochs: int) -> Sequence[Stage]:
        rates = self.rates()
        prompt = rates.pop("prompt")
        head = {name: lr for name, lr in rates.items() if name.startswith("head.")}
        return [Stage("shared", {"prompt": prompt, **head}, epochs), Stage("groups", rates, epochs)]

    def _chosen(self, theta: State, batch: Batch) -> tuple[Tensor, Tensor]:
        """Cosine to the nearest key and that key's group prompt, for every real sample."""
        with torch.no_grad():
            query = F.normalize(self.backbone.cls(batch.images), dim=-1)
        cosine = (batch.rows(F.normalize(theta["keys"], dim=-1)) @ query[..., None])[..., 0]
        best, index = cosine.max(1)
        groups = batch.rows(theta["groups"])
        return best, groups[torch.arange(len(index)), index][:, None]

    def features(self, theta: State, batch: Batch) -> Tensor:
        rows = batch.rows(theta["prompt"])
        if batch.stage != "shared":
            rows = torch.cat([rows, self._chosen(theta, batch)[1]], dim=1)
        return batch.pad(self.backbone.cls(batch.images, shallow(rows)))

    def loss(self, theta: State, batch: Batch) -> Tensor:
        loss = super().loss(theta, batch)
        return loss - batch.mean(batch.pad(self._chosen(theta, batch)[0])) if batch.stage == "groups" else loss

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        new = super().aggregate(server, uploads, weights, clients)
        return {**new, "groups": 0.5 * server["groups"] + 0.5 * new["groups"]}


class Noise(FedVPT):
    """Prompts are drawn for every sample, in training and in evaluation."""

    fixed_inputs = False

    def features(self, theta: State, batch: Batch) -> Tensor:
        noise = batch.pack(batch.normal(*theta["prompt"].shape[1:]))
        return batch.pad(self.backbone.cls(batch.images, shallow(batch.rows(theta["prompt"]) + 0.05 * noise)))


class Proximal(FedVPT, Downloads):
    """The server sends a constant with the prompt: more comes down than goes up."""

    def download(self, server: State, clients: Sequence[int]) -> State:
        sent = super().download(server, clients)
        return {**sent, "anchor": sent["prompt"]}

    def upload(self, theta: State, received: State) -> State:
        return {name: theta[name] for name in received if name != "anchor"}

    def loss(self, theta: State, batch: Batch) -> Tensor:
        return super().loss(theta, batch) + 0.25 * (theta["prompt"] - theta["anchor"]).square().sum((1, 2))


UNUSUAL = [Generator, Groups, Noise, Proximal]
