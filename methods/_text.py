"""What methods with text have in common: a learnable context before every class name, and cosine scores.

They have no head: a class is scored by the cosine of image and text feature, times the scale that CLIP was trained
with, over all classes of the task. Image features are frozen and computed once; the text features of all classes are
computed once per step, for all stacked clients together. A subclass says which contexts are shared (`init_server`) and
which are private (`init_personal`), and how they make a client's context (`context`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.text import Prompts
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods._mixins import Constants, OpenVocabulary

CONTEXT_STD = 0.02
CLASSES = "class features"  # in ``batch.start``, where they are the same for all batches


@dataclass(frozen=True)
class TextParams:
    """Options of a method with one learned context."""

    lr: float = option(0.002, "learning rate of everything that trains", low=0, grid=(0.002, 0.01, 0.05), paper="0.002")
    length: int = option(16, "context tokens m before each class name", low=1, paper="16")
    ctx_init: str = option(
        "", "words that the context starts as, such as 'a photo of a' (length=4); empty means N(0, 0.02^2)"
    )


class TextMethod(Constants, OpenVocabulary):
    """Contexts, shared and private, around frozen CLIP towers."""

    needs = frozenset({"text", "features"})
    paper_policy: ClassVar[str] = "none"
    backbone: FrozenCLIP

    @cached_property
    def prompts(self) -> Prompts:
        """`X ... X name.` of all classes, tokenised."""
        return self.backbone.class_prompts(self.task.class_names, self.params.length)

    def first_context(self, rng: torch.Generator) -> Tensor:
        """The first values of a context, (m, d_t); drawn alike by all methods."""
        m, words = int(self.params.length), str(self.params.ctx_init)
        draw = CONTEXT_STD * torch.randn(m, self.backbone.text.width, generator=rng)
        if not words:
            return draw
        context = self.backbone.text.context_of(words)
        if len(context) != m:
            raise UserError(
                f"{self.name}: ctx_init = {words!r} has {len(context)} tokens, but length = {m}; "
                f"set length={len(context)}, or leave ctx_init out."
            )
        return context

    def init_server(self, rng: torch.Generator) -> State:
        return {"context": self.first_context(rng)}

    def context(self, theta: State) -> Tensor:
        """The context that each client classifies with, (K, m, d_t), from what it holds."""
        return theta["context"]

    def encode(self, context: Tensor) -> Tensor:
        """Normalised text features of all classes under each context, (K, m, d_t) to (K, C, d)."""
        return self.backbone.text_features(context, self.prompts)

    def template_texts(self) -> Tensor:
        """Frozen features of all classes, (C, d), in ``params.template`` or, if it is empty, that of the weights."""
        templates = [self.params.template] if self.params.template else None
        return self.backbone.template_features(self.task.class_names, templates)

    def class_features(self, theta: State) -> Tensor:
        """What images are compared with, (K, ...), whatever the batch: computed once per step or evaluation."""
        return self.encode(self.context(theta))

    def image_features(self, batch: Batch) -> Tensor:
        """Normalised image features, (K, B, d)."""
        return self.backbone.project(batch.features)

    def cosine_logits(self, images: Tensor, classes: Tensor) -> Tensor:
        """(K, B, d) and (K, C, d) to (K, B, C)."""
        return self.backbone.logit_scale * torch.bmm(images, classes.mT)

    def begin_evaluation(self, theta: State, batches: Iterable[Batch]) -> State:  # noqa: ARG002
        return {CLASSES: self.class_features(theta)}

    def current_classes(self, theta: State, batch: Batch) -> Tensor:
        """`class_features`, computed now unless one evaluation shares them."""
        return batch.start[CLASSES] if CLASSES in batch.start else self.class_features(theta)

    def logits(self, theta: State, batch: Batch) -> Tensor:
        return self.cosine_logits(self.image_features(batch), self.current_classes(theta, batch))

    def loss(self, theta: State, batch: Batch) -> Tensor:
        return cross_entropy(self.logits(theta, batch), batch)

    def predict(self, theta: State, batch: Batch) -> Tensor:
        return self.logits(theta, batch)

    def rates(self) -> dict[str, float]:
        unseeded = torch.Generator()
        return dict.fromkeys([*self.init_server(unseeded), *self.init_personal(unseeded, 0)], self.params.lr)
