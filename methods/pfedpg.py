"""pFedPG: the server generates each client's prompt from a descriptor and learns from where training moved it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedprompt.backbones.backbone import FrozenViT, shallow
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import Stage, State, Task
from fedprompt.methods._headed import PromptParams
from fedprompt.methods._mixins import Downloads, Stages, UnseenClients
from fedprompt.methods._server_learning import LearningServer, ServerOptimiser
from fedprompt.methods.fedvpt import FedVPT

MATRICES = ("query", "key", "value", "out")
GENERATOR = ("base", *MATRICES, "shift")
LEARNED = (*GENERATOR, "descriptors")
MOMENTUM = {"sgd": 0.0, "adam": 0.9}  # of the server's optimisers


@dataclass(frozen=True)
class GeneratorParams(PromptParams):
    lr: float = option(0.01, "learning rate of the prompt", low=0, paper="tuned", grid=(0.01, 0.05, 0.1, 0.25))
    gen_lr: float = option(
        0.1, "learning rate of the generator and the descriptors", low=0, paper="tuned", grid=(0.001, 0.01, 0.05, 0.1)
    )
    gen_optimizer: str = option("sgd", "optimiser of the generator", choices=MOMENTUM)
    gen_weights: str = option(
        "uniform",
        "the cohort in the generator's gradient: mean, the protocol's weighted mean, or sum",
        choices=("uniform", "protocol", "sum"),
    )
    clip: float = option(50.0, "largest norm of the generator's gradient", low=0)
    heads: int = option(1, "attention heads of the generator; must divide the width", low=1)
    unseen_mode: str = option(
        "backprop",
        "how an unseen client finds its descriptor: its loss through the frozen generator, or exchanges of prompts",
        choices=("backprop", "server_loop"),
    )


def generate(generator: State, descriptors: Tensor, heads: int = 1) -> Tensor:
    """Prompts (K, T, d) of descriptors (K, d): the base plus one attended vector, the same in all T rows.

    The generator's tensors are the server's, or stacked copies with a leading axis of clients.
    """

    def split(rows: Tensor) -> Tensor:  # (..., n, d) to (..., heads, n, d / heads)
        return torch.unflatten(rows, -1, (heads, -1)).transpose(-2, -3)

    base = generator["base"]
    query = split(descriptors[:, None] @ generator["query"])
    key, value = split(base @ generator["key"]), split(base @ generator["value"])
    attention = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    context: Tensor = (attention @ value).transpose(-2, -3).flatten(-2)
    return base + context @ generator["out"] + generator["shift"][..., None, :]


def clip_jointly(grads: Iterable[Tensor], norm: float) -> list[Tensor]:
    """All gradients scaled together so that their common norm is at most ``norm``."""
    grads = list(grads)
    total = torch.stack([grad.square().sum() for grad in grads]).sum().sqrt()
    scale = (norm / total.clamp(min=1e-12)).clamp(max=1)
    return [grad * scale for grad in grads]


class PFedPG(FedVPT, LearningServer, Downloads, Stages, UnseenClients):
    """Server: the generator and a descriptor per client. Sent: the prompt they make. Sent back: how it moved."""

    name = "pfedpg"
    title = "pFedPG"
    order = 30
    paper = "Yang et al., Efficient Model Personalization in FL via Client-Specific Prompt Generation (ICCV 2023)"
    Params = GeneratorParams
    client_rows = ("descriptors",)

    def __init__(self, params: GeneratorParams, backbone: FrozenViT, task: Task) -> None:
        super().__init__(params, backbone, task)
        if backbone.width % params.heads:
            raise UserError(
                f"parameters of pfedpg: heads = {params.heads} does not divide the width {backbone.width} of backbone "
                f"{backbone.name!r}; use 1 or another divisor."
            )

    def init_server(self, rng: torch.Generator) -> State:
        shared, width = super().init_server(rng), self.backbone.width
        state = {"base": shared.pop("prompt"), **shared}
        for name in MATRICES:  # torch's rule for a linear layer
            state[name] = (2 * torch.rand(width, width, generator=rng) - 1) / width**0.5
        state["shift"] = torch.zeros(width)
        state["descriptors"] = 2 * torch.rand(self.task.num_clients, width, generator=rng) - 1
        state["visits"] = torch.zeros(self.task.num_clients, dtype=torch.int64)
        return state

    def features(self, theta: State, batch: Batch) -> Tensor:
        # An unseen client holds a descriptor in place of a prompt, and a frozen copy of the generator.
        prompt = theta["prompt"] if "prompt" in theta else self._generate(theta, theta["descriptor"])
        return batch.pad(self.backbone.cls(batch.images, shallow(batch.rows(prompt))))

    def _generate(self, generator: State, descriptors: Tensor) -> Tensor:
        return generate(generator, descriptors, self.params.heads)

    # -- a round ----------------------------------------------------------------------------------------------------

    def download(self, server: State, clients: Sequence[int]) -> State:
        head = {name: tensor for name, tensor in server.items() if name.startswith("head.")}
        return {
            "prompt": self._generate(server, server["descriptors"][list(clients)]),
            **super().download(head, clients),
        }

    def upload(self, theta: State, received: State) -> State:
        """First prompt minus last, the opposite of what training added, so that the server DESCENDS along it."""
        head = {name: theta[name] for name in received if name != "prompt"}
        return {"delta": received["prompt"] - theta["prompt"], **head}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        head = {name: stack for name, stack in uploads.items() if name != "delta"}
        new = super().aggregate(server, head, weights, clients)
        new["visits"] = server["visits"].clone()
        new["visits"][list(clients)] += 1
        return new

    def server_optimiser(self) -> ServerOptimiser:
        rates = dict.fromkeys(LEARNED, self.params.gen_lr)
        return ServerOptimiser(self.params.gen_optimizer, rates, MOMENTUM[self.params.gen_optimizer])

    def server_gradients(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        """Gradient of sum_k w_k <P_k, delta_k> in all the server learns, clipped."""
        equal = {"uniform": 1 / len(clients), "sum": 1.0}.get(self.params.gen_weights)
        share = weights if equal is None else torch.full_like(weights, equal)
        learned = {name: server[name].detach().requires_grad_() for name in LEARNED}
        with torch.enable_grad():
            prompts = self._generate(learned, learned["descriptors"][list(clients)])
            pull = (prompts * uploads["delta"]).sum((1, 2)) @ share.to(uploads["delta"])
        grads = torch.autograd.grad(pull, list(learned.values()))
        return dict(zip(LEARNED, clip_jointly(grads, self.params.clip), strict=True))

    # -- a client kept out of all rounds ----------------------------------------------------------------------------

    def unseen_download(self, server: State, clients: Sequence[int]) -> State:
        """The frozen generator and the mean descriptor of those who took part (of all, before round 1)."""
        took_part = (server["visits"] > 0).to(server["descriptors"])
        share = torch.where(took_part.sum() > 0, took_part, torch.ones_like(took_part))
        sent = {name: server[name] for name in server if name in GENERATOR or name.startswith("head.")}
        sent["descriptor"] = share @ server["descriptors"] / share.sum()
        stacked = super().download(sent, clients)  # as they are
        if self.params.unseen_mode == "server_loop":
            stacked["prompt"] = self._generate(stacked, stacked["descriptor"])
        return stacked

    def unseen_stages(self, epochs: int) -> Sequence[Stage]:
        """It finds its descriptor: through the frozen generator, or by exchanging prompts."""
        if self.params.unseen_mode == "server_loop":
            return [Stage("exchange", {"prompt": self.params.lr}, 1)] * epochs
        return [Stage("descriptor", {"descriptor": self.params.gen_lr}, epochs)]

    def end_stage(self, stage: Stage, theta: State) -> State:
        """The server's answer to an unseen client's exchange: its descriptor moves as in a round, all else stays."""
        if stage.name != "exchange":
            return {}
        descriptor = theta["descriptor"].detach().requires_grad_()
        with torch.enable_grad():
            prompt = self._generate(theta, descriptor)
            pull = (prompt * (prompt - theta["prompt"]).detach()).sum((1, 2))
        (grads,) = torch.autograd.grad(pull.sum(), [descriptor])
        steps = torch.stack([clip_jointly([grad], self.params.clip)[0] for grad in grads])
        moved = theta["descriptor"] - self.params.gen_lr * steps
        return {"descriptor": moved, "prompt": self._generate(theta, moved)}
