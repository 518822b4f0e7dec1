"""pFedDC: text and visual prompts, each a shared one fused with a private one by cross-attention. A reconstruction.

The shared prompt asks, the private one answers, and the answer is added to it; the attention is private too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedprompt.backbones.backbone import shallow
from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._attention import attend, attention_init
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._text import CONTEXT_STD, TextMethod, TextParams


@dataclass(frozen=True)
class PFedDCParams(TextParams):
    visual_length: int = option(8, "visual prompt tokens; 0 means text prompts only", low=0)
    heads: int = option(8, "attention heads", low=1)
    attention_lr: float = option(0.002, "learning rate of the attention", low=0)
    query: str = option("global", "whose prompt asks and is added to", choices=("global", "local"))
    residual: bool = option(True, "add the answer to the prompt that asks")


class PFedDC(TextMethod):
    """Shared: a text and a visual prompt. Private: one of each, and the attention that fuses them."""

    name = "pfeddc"
    title = "pFedDC"
    order = 270
    paper = "Personalized Federated Learning via Dual-Prompt Optimization and Cross Fusion (arXiv 2506.21144, 2025)"
    payload_formula = "m*d_t + m_v*d_v each way"
    needs = frozenset({"text", "images", "prompts"})
    Params = PFedDCParams

    def __init__(self, params: PFedDCParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        for width in (backbone.text.width, backbone.width):
            if width % params.heads:
                raise UserError(
                    f"pfeddc: heads = {params.heads} does not divide a tower's width {width}; use a divisor."
                )

    def init_server(self, rng: torch.Generator) -> State:
        return {"context": self.first_context(rng), **self.visual_prompt("visual", rng)}

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        personal = {"own.context": self.first_context(rng), **self.visual_prompt("own.visual", rng)}
        personal |= attention_init("text", self.backbone.text.width, rng)
        return personal | (attention_init("image", self.backbone.width, rng) if self.params.visual_length else {})

    def visual_prompt(self, name: str, rng: torch.Generator) -> State:
        shape = (int(self.params.visual_length), self.backbone.width)
        return {name: CONTEXT_STD * torch.randn(*shape, generator=rng)} if shape[0] else {}

    def rates(self) -> dict[str, float]:
        return {
            name: self.params.attention_lr if name.startswith(("text.", "image.")) else rate
            for name, rate in super().rates().items()
        }

    def fuse(self, theta: State, attention: str, shared: Tensor, own: Tensor) -> Tensor:
        asks, answers = (shared, own) if self.params.query == "global" else (own, shared)
        answer = attend(theta, attention, asks, answers, self.params.heads)
        return asks + answer if self.params.residual else answer

    def context(self, theta: State) -> Tensor:
        return self.fuse(theta, "text", theta["context"], theta["own.context"])

    def logits(self, theta: State, batch: Batch) -> Tensor:
        return self.cosine_logits(self.prompted_features(theta, batch), self.current_classes(theta, batch))

    def prompted_features(self, theta: State, batch: Batch) -> Tensor:
        """Image features under the fused visual prompt, which enters before the tower's first norm, (K, B, d)."""
        edit = None
        if self.params.visual_length:
            prompt = self.backbone.vit.norm_pre(self.fuse(theta, "image", theta["visual"], theta["own.visual"]))
            edit = shallow(batch.rows(prompt))
        return batch.pad(self.backbone.image_features(batch.images, edit))
