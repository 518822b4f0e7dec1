"""FedCLIP: an attention mask over the coordinates of the image feature, averaged; towers and texts stay fixed."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.fields import option
from fedprompt.methods._attention import affine, affine_init
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._text import TextMethod


@dataclass(frozen=True)
class FedCLIPParams:
    lr: float = option(0.002, "learning rate of the adapter", low=0, paper="5e-5 (Adam)", grid=(0.002, 0.01, 0.05))
    template: str = option("", "text with {} for the class name; empty means the template of the weights")
    loss: str = option("ce", "over the classes, or between the images and texts of a batch", choices=("ce", "inbatch"))


class FedCLIP(TextMethod):
    """Shared: two affine maps on the image feature. No context is learned."""

    name = "fedclip"
    title = "FedCLIP"
    order = 290
    paper = "Lu et al., FedCLIP: Fast Generalization and Personalization for CLIP in Federated Learning (2023)"
    payload_formula = "2*(d^2 + d) each way"
    Params = FedCLIPParams

    def __init__(self, params: FedCLIPParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        self._classes = self.template_texts()

    def init_server(self, rng: torch.Generator) -> State:
        dim = self.backbone.dim
        return {**affine_init("first", dim, dim, rng), **affine_init("second", dim, dim, rng)}

    def class_features(self, theta: State) -> Tensor:
        return self._classes.expand(len(theta["first.bias"]), -1, -1)

    def masked(self, theta: State, batch: Batch) -> Tensor:
        """Image features weighted by a softmax over their own coordinates, normalised, (K, B, d)."""
        raw = self.backbone.projection(batch.features)
        attention = affine(theta, "second", affine(theta, "first", raw).tanh()).softmax(-1)
        return F.normalize(attention * raw, dim=-1)

    def logits(self, theta: State, batch: Batch) -> Tensor:
        return self.cosine_logits(self.masked(theta, batch), self.current_classes(theta, batch))

    def loss(self, theta: State, batch: Batch) -> Tensor:
        return super().loss(theta, batch) if self.params.loss == "ce" else self.in_batch(theta, batch)

    def in_batch(self, theta: State, batch: Batch) -> Tensor:
        """Every image against the texts of all images of its client's batch, and the other way round.

        Two images of one class are each other's negatives, as in the public code.
        """
        texts = self._classes[batch.labels]
        logits = self.cosine_logits(self.masked(theta, batch), texts).masked_fill(~batch.mask[:, None], -1e9)
        pairs = torch.arange(logits.shape[1], device=logits.device).expand_as(batch.labels)
        backwards = self.cosine_logits(texts, self.masked(theta, batch)).masked_fill(~batch.mask[:, None], -1e9)
        image_loss, text_loss = (F.cross_entropy(x.mT, pairs, reduction="none") for x in (logits, backwards))
        return batch.mean((image_loss + text_loss) / 2)
