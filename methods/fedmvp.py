"""FedMVP: visual prompts for each image, made by attention of its patches to the texts of the classes.

Only their maker is trained, and averaged. The prompted feature is kept near the frozen one. In training a client knows
and scores its own classes alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.harness.core.errors import UserError
from fedprompt.harness.core.fields import option
from fedprompt.harness.model.backbone import shallow
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
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods._text import TextMethod
from fedprompt.methods.fedtpg import FAR


@dataclass(frozen=True)
class FedMVPParams:
    lr: float = option(0.003, "learning rate of everything that trains", low=0, grid=(0.003, 0.01, 0.05), paper="0.003")
    visual_length: int = option(4, "visual tokens made for an image", low=1, paper="4")
    heads: int = option(4, "attention heads", low=1, paper="4")
    consistency: float = option(10.0, "pull of the prompted feature to the frozen one", low=0, paper="10")
    template: str = option("", "text with {} for the class name; empty means the template of the weights")
    label_space: str = option(
        "local", "classes that a client scores in training: its own or all", choices=("local", "all"), paper="local"
    )


class FedMVP(TextMethod):
    name = "fedmvp"
    title = "FedMVP"
    order = 299
    paper = "Singha et al., FedMVP: Federated Multimodal Visual Prompt Tuning for Vision-Language Models (ICCV 2025)"
    payload_formula = "16*d_v^2 + 20*d_v + d*d_v each way"
    needs = frozenset({"text", "images", "features", "prompts"})
    Params = FedMVPParams

    def __init__(self, params: FedMVPParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        if backbone.width % params.heads:
            raise UserError(f"fedmvp: heads = {params.heads} does not divide the image tower's {backbone.width}.")
        templates = [params.template] if params.template else None
        self.texts = backbone.template_features(task.class_names, templates)  # (C, d)

    def init_server(self, rng: torch.Generator) -> State:
        width = self.backbone.width
        state = {**affine_init("map", self.backbone.dim, width, rng), **attention_init("attention", width, rng)}
        return {**state, **norm_init("norm.query", width), **norm_init("norm.names", width), **gated_init(width, rng)}

    def payload(self) -> tuple[int, int]:
        width, dim = self.backbone.width, self.backbone.dim
        floats = dim * width + width + 2 * 2 * width + attention_floats(width) + gated_floats(width)
        return floats, floats

    def class_features(self, theta: State) -> Tensor:
        return self.texts.expand(len(theta["map.bias"]), -1, -1)

    def visual_prompts(self, theta: State, batch: Batch, classes: Tensor) -> Tensor:
        """One prompt per image, packed, (n, m_v, d_v), from its patches and the texts of ``classes``, (K, C) bool."""
        patches = batch.pad(self.backbone.embed(batch.images)[:, 1:])  # (K, B, M, d_v)
        texts = affine(theta, "map", self.class_features(theta))
        query, keys = normed(theta, "norm.query", patches.flatten(1, 2)), normed(theta, "norm.names", texts)
        answer = gated(theta, attend(theta, "attention", query, keys, self.params.heads, classes, texts))
        rows = batch.pack(answer.view(patches.shape))
        return F.adaptive_avg_pool1d(rows.mT, int(self.params.visual_length)).mT

    def prompted_images(self, theta: State, batch: Batch, classes: Tensor) -> Tensor:
        prompts = self.backbone.vit.norm_pre(self.visual_prompts(theta, batch, classes))
        return batch.pad(self.backbone.image_features(batch.images, shallow(prompts)))

    def loss(self, theta: State, batch: Batch) -> Tensor:
        own = (self.task.train_counts[list(batch.clients)] > 0).to(batch.labels.device)
        if self.params.label_space == "all":
            own = torch.ones_like(own)
        images = self.prompted_images(theta, batch, own)
        logits = self.cosine_logits(images, self.class_features(theta)).masked_fill(~own[:, None], FAR)
        apart = 1 - batch.mean((images * self.image_features(batch)).sum(-1))
        consistency: float = self.params.consistency
        return cross_entropy(logits, batch) + consistency * apart

    def predict(self, theta: State, batch: Batch) -> Tensor:
        every = torch.ones(len(batch.clients), self.task.num_classes, dtype=torch.bool, device=batch.labels.device)
        return self.cosine_logits(self.prompted_images(theta, batch, every), self.class_features(theta))

    def step_floats(self) -> int:
        return 0
