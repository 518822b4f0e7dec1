"""FedSEPT: a client classifies with a mixture of prompts, whose weights depend on the image.

Each expert's context is a small shared factor times a public matrix, plus one residual that never leaves the client.
Only the factors travel. The router that mixes the experts' logits is private, too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.fields import option
from fedprompt.core.rng import torch_rng
from fedprompt.methods._attention import affine, affine_init
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods._text import CONTEXT_STD, TextMethod, TextParams

GATE_STD = 0.01


@dataclass(frozen=True)
class FedSEPTParams(TextParams):
    experts: int = option(4, "experts J", low=1, paper="4")
    rank: int = option(16, "rank r of an expert's shared factor", low=1, paper="16")
    diversity: float = option(
        10.0, "weight of the squared cosines between factors; 0 means none", low=0, grid=(0.0, 1.0, 10.0), paper="10"
    )
    dropout: float = option(0.1, "share of the router's inputs dropped in training", low=0, high=0.9, paper="0.1")
    router: str = option(
        "attention",
        "what the router computes of an image: the two maps that attention over a single key comes to, or one",
        choices=("attention", "affine"),
        paper="attention",
    )


class FedSEPT(TextMethod):
    """Shared: the experts' factors. Private: what is added to all contexts, and the router."""

    name = "fedsept"
    title = "FedSEPT"
    order = 311
    paper = "FedSEPT: Federated Learning with Private Low-Rank Prompt Experts (ACM MM 2026)"
    payload_formula = "J*m*r each way"
    Params = FedSEPTParams

    def __init__(self, params: FedSEPTParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        draw = torch.randn(params.rank, backbone.text.width, generator=torch_rng(0, "init", "fedsept"))
        self.public = (CONTEXT_STD * draw).to(backbone.device)  # G: known to all, never trained, never sent

    # -- state: factors (J, m, r); residual (m, d_t), router d -> d -> J -----------------------------------------------

    def init_server(self, rng: torch.Generator) -> State:
        shape = int(self.params.experts), int(self.params.length), int(self.params.rank)
        return {"factors": CONTEXT_STD * torch.randn(*shape, generator=rng)}

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        width, experts = self.backbone.dim, int(self.params.experts)
        value = (6 / (4 * width)) ** 0.5 * (2 * torch.rand(width, width, generator=rng) - 1)  # as part of q, k and v
        out = affine_init("out", width, width, rng)["out.weight"]
        attention = {"value.weight": value, "value.bias": torch.zeros(width)}
        return {
            "residual": torch.zeros(int(self.params.length), self.backbone.text.width),
            **(attention if self.params.router == "attention" else {}),
            **{"out.weight": out, "out.bias": torch.zeros(width)},
            **{"norm.weight": torch.ones(width), "norm.bias": torch.zeros(width)},
            "gate.weight": GATE_STD * torch.randn(experts, width, generator=rng),
            "gate.bias": torch.zeros(experts),
        }

    # -- the client ----------------------------------------------------------------------------------------------------

    def contexts(self, theta: State) -> Tensor:
        """Of every expert, (K, J, m, d_t)."""
        return theta["factors"] @ self.public.to(theta["factors"].dtype) + theta["residual"][:, None]

    def class_features(self, theta: State) -> Tensor:
        """Under every expert, (K, J, C, d)."""
        contexts = self.contexts(theta)
        return torch.unflatten(self.encode(contexts.flatten(0, 1)), 0, contexts.shape[:2])

    def shares(self, theta: State, images: Tensor, kept: Tensor | None = None) -> Tensor:
        """What each expert counts for each image, (K, B, J).

        Attention of a learned query over one key gives that key a weight of 1, so neither the query nor the maps of
        queries and keys matter: what is left are the maps of values and of the output.
        """
        attended = affine(theta, "value", images) if self.params.router == "attention" else images
        read = F.layer_norm(affine(theta, "out", attended), images.shape[-1:])
        read = read * theta["norm.weight"][:, None] + theta["norm.bias"][:, None]
        return affine(theta, "gate", read if kept is None else read * kept).softmax(-1)

    def mixed_logits(self, theta: State, batch: Batch, kept: Tensor | None = None) -> Tensor:
        """The experts' logits, mixed."""
        images = self.image_features(batch)
        per_expert = torch.einsum("kbd,kjcd->kbjc", images, self.current_classes(theta, batch))
        return self.backbone.logit_scale * torch.einsum("kbj,kbjc->kbc", self.shares(theta, images, kept), per_expert)

    def logits(self, theta: State, batch: Batch) -> Tensor:
        return self.mixed_logits(theta, batch)

    def loss(self, theta: State, batch: Batch) -> Tensor:
        share: float = self.params.dropout
        kept = (batch.uniform(self.backbone.dim) >= share) / (1 - share) if share else None
        diversity: float = self.params.diversity
        return cross_entropy(self.mixed_logits(theta, batch, kept), batch) + diversity * overlap(theta["factors"])


def overlap(factors: Tensor) -> Tensor:
    """Mean squared cosine of two different experts' factors, (K, J, m, r) to (K,); 0 for a single expert."""
    unit = F.normalize(factors.flatten(2), dim=-1)
    squares = (unit @ unit.mT).square()
    experts = factors.shape[1]
    others = squares.sum((1, 2)) - squares.diagonal(dim1=1, dim2=2).sum(1)
    return others / max(1, experts * (experts - 1))
