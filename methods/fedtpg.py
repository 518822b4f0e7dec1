"""FedTPG: a generator makes the context from the names of the classes at hand; only it is trained and averaged.

In training a client scores its own classes alone, under the context of their names. Where other classes are evaluated,
the context is made of their names.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.fields import option
from fedprompt.methods._attention import affine, affine_init
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._headed import cross_entropy, revised
from fedprompt.methods._prompt_generator import GeneratorMethod, label_space_option
from fedprompt.methods._text import CONTEXT_STD, TextParams


@dataclass(frozen=True)
class FedTPGParams(TextParams):
    lr: float = revised(TextParams, "lr", default=0.003, paper="0.003", grid=(0.003, 0.01, 0.05))
    length: int = revised(TextParams, "length", default=4, paper="4")
    ctx_init: str = revised(TextParams, "ctx_init", help="not used: the context is generated")
    heads: int = option(4, "attention heads of the generator", low=1, paper="4")
    label_space: str = label_space_option()


class FedTPG(GeneratorMethod):
    """Shared: the generator of contexts and the tokens that ask it. Private: nothing."""

    name = "fedtpg"
    title = "FedTPG"
    order = 288
    paper = "Qiu et al., Federated Text-driven Prompt Generation for Vision-Language Models (ICLR 2024)"
    payload_formula = "m*d_t + 16*d_t^2 + 19*d_t each way, and d*d_t + d_t if d != d_t"
    Params = FedTPGParams
    tower = "text"

    def __init__(self, params: FedTPGParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.names = backbone.template_features(task.class_names, ["{}"])  # of the bare class names, (C, d)

    def init_server(self, rng: torch.Generator) -> State:
        tokens = CONTEXT_STD * torch.randn(int(self.params.length), self.width, generator=rng)
        state, dim = {"tokens": tokens, **self.init_generator(rng)}, self.backbone.dim
        return state | (affine_init("map", dim, self.width, rng) if dim != self.width else {})

    @cached_property
    def distinct(self) -> Tensor:
        """False for a name that an earlier class has, (C,): said twice it would weigh double."""
        names = self.task.class_names
        return torch.tensor([names.index(name) == place for place, name in enumerate(names)])

    def context_of(self, theta: State, classes: Tensor) -> Tensor:
        """Contexts (K, m, d_t) from the names of ``classes``, (K, C) bool."""
        names = self.names.expand(len(theta["tokens"]), -1, -1)
        if "map.weight" in theta:
            names = affine(theta, "map", names)
        return self.generate(theta, theta["tokens"], names, classes & self.distinct.to(classes.device))

    def context(self, theta: State) -> Tensor:
        """For all classes of the task."""
        shape = (len(theta["tokens"]), self.task.num_classes)
        return self.context_of(theta, torch.ones(shape, dtype=torch.bool, device=theta["tokens"].device))

    def loss(self, theta: State, batch: Batch) -> Tensor:
        classes = self.scored_classes(batch)
        texts = self.encode(self.context_of(theta, classes))
        return cross_entropy(self.logits_among(classes, self.image_features(batch), texts), batch)
