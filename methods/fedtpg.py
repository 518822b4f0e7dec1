"""FedTPG: a generator makes the context from the names of the classes at hand; only it is trained and averaged.

In training a client scores its own classes alone, under the context of their names. Where other classes are evaluated,
the context is made of their names.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedprompt.harness.core.errors import UserError
from fedprompt.harness.core.fields import option
from fedprompt.harness.model.batch import Batch
from fedprompt.harness.model.clip import FrozenCLIP
from fedprompt.methods._attention import (
    affine,
    affine_init,
    attend,
    attention_floats,
    attention_init,
    gated,
    gated_floats,
    gated_init,
    norm_init,
    normed,
)
from fedprompt.methods._contract import State, Task
from fedprompt.methods._headed import cross_entropy, revised
from fedprompt.methods._text import CONTEXT_STD, TextMethod, TextParams

FAR = -1e4  # below every logit, yet finite: padding has the label of a class that its client may not have


@dataclass(frozen=True)
class FedTPGParams(TextParams):
    lr: float = revised(TextParams, "lr", default=0.003, paper="0.003", grid=(0.003, 0.01, 0.05))
    length: int = revised(TextParams, "length", default=4, paper="4")
    ctx_init: str = revised(TextParams, "ctx_init", help="not used: the context is generated")
    heads: int = option(4, "attention heads of the generator", low=1, paper="4")
    label_space: str = option(
        "local", "classes that a client scores in training: its own or all", choices=("local", "all"), paper="local"
    )


class FedTPG(TextMethod):
    name = "fedtpg"
    title = "FedTPG"
    order = 288
    paper = "Qiu et al., Federated Text-driven Prompt Generation for Vision-Language Models (ICLR 2024)"
    payload_formula = "m*d_t + 16*d_t^2 + 19*d_t each way (+ d*d_t + d_t if d != d_t)"
    Params = FedTPGParams

    def __init__(self, params: FedTPGParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        if backbone.text.width % params.heads:
            raise UserError(f"fedtpg: heads = {params.heads} does not divide the text tower's {backbone.text.width}.")
        self.names = backbone.template_features(task.class_names, ["{}"])  # of the bare class names, (C, d)

    def init_server(self, rng: torch.Generator) -> State:
        width, dim = self.backbone.text.width, self.backbone.dim
        state = {"tokens": CONTEXT_STD * torch.randn(int(self.params.length), width, generator=rng)}
        state |= {**norm_init("norm.query", width), **norm_init("norm.names", width)}
        state |= {**attention_init("attention", width, rng), **gated_init(width, rng)}
        return state | (affine_init("map", dim, width, rng) if dim != width else {})

    def payload(self) -> tuple[int, int]:
        width, dim = self.backbone.text.width, self.backbone.dim
        floats = self.context_floats + 2 * 2 * width + attention_floats(width) + gated_floats(width)
        floats += dim * width + width if dim != width else 0
        return floats, floats

    @cached_property
    def distinct(self) -> Tensor:
        """False for a name that an earlier class has, (C,): said twice it would weigh double."""
        names = self.task.class_names
        return torch.tensor([names.index(name) == place for place, name in enumerate(names)])

    def generate(self, theta: State, classes: Tensor) -> Tensor:
        """Contexts (K, m, d_t) from the names of ``classes``, (K, C) bool."""
        clients = len(theta["tokens"])
        names = self.names.expand(clients, -1, -1)
        if "map.weight" in theta:
            names = affine(theta, "map", names)
        seen = classes & self.distinct.to(classes.device)
        query, known = normed(theta, "norm.query", theta["tokens"]), normed(theta, "norm.names", names)
        return gated(theta, attend(theta, "attention", query, known, self.params.heads, seen))

    def context(self, theta: State) -> Tensor:
        """For all classes of the task."""
        shape = (len(theta["tokens"]), self.task.num_classes)
        return self.generate(theta, torch.ones(shape, dtype=torch.bool, device=theta["tokens"].device))

    def loss(self, theta: State, batch: Batch) -> Tensor:
        if self.params.label_space == "all":
            return super().loss(theta, batch)
        own = (self.task.train_counts[list(batch.clients)] > 0).to(batch.labels.device)
        logits = self.cosine_logits(self.image_features(batch), self.encode(self.generate(theta, own)))
        return cross_entropy(logits.masked_fill(~own[:, None], FAR), batch)
