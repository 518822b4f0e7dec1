"""pFedMMA: adapters next to the later blocks of both towers meet in one small layer, the only one that is averaged."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedprompt.backbones.backbone import block_rows
from fedprompt.backbones.clip import FrozenCLIP, fill_template
from fedprompt.backbones.text import Prompts
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._mixins import StopGradients
from fedprompt.methods._text import TextMethod

PARTS = ("shared", "text.down", "text.up", "image.down", "image.up")


@dataclass(frozen=True)
class PFedMMAParams:
    lr: float = option(0.002, "learning rate of everything that trains", low=0, grid=(0.002, 0.01, 0.05), paper="0.001")
    bottleneck: int = option(32, "width d_a of the layer that both towers share", low=1, paper="32")
    scale: float = option(0.001, "beta, factor of what an adapter adds", low=1e-9, paper="0.001")
    blocks: int = option(0, "last blocks of both towers with adapters; 0 means two thirds", low=0, paper="8 of 12")
    template: str = option("", "text with {} for the class name; empty means the template of the weights")


class PFedMMA(TextMethod, StopGradients):
    """Shared: the layer where both towers meet. Private: the ways to it and from it."""

    name = "pfedmma"
    title = "pFedMMA"
    order = 298
    paper = "Ghiasvand et al., pFedMMA: Personalized Federated Fine-Tuning with Multi-Modal Adapter for VLMs (2025)"
    payload_formula = "n*(d_a^2 + d_a) each way, in n adapted blocks"
    needs = frozenset({"text", "images", "prompts"})
    Params = PFedMMAParams
    stop_gradients: ClassVar[Mapping[str, str]] = {
        f"{part}.{kind}": "adapters learn as if beta were 1" for part in PARTS for kind in ("weight", "bias")
    }

    def __init__(self, params: PFedMMAParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        self.depths = {"text": len(backbone.text.blocks), "image": backbone.depth}
        shallower = min(self.depths.values())
        self.adapted = int(params.blocks) or max(1, round(shallower * 2 / 3))
        if self.adapted > shallower:
            raise UserError(f"pfedmma: blocks = {params.blocks}, but the shallower tower has {shallower}; use fewer.")

    # -- state: the meeting layer is shared; the ways to it and from it are private -----

    def init_server(self, rng: torch.Generator) -> State:
        inner = int(self.params.bottleneck)
        return layers("shared", self.adapted, inner, inner, rng)

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        inner = int(self.params.bottleneck)
        personal: State = {}
        for tower, width in (("text", self.backbone.text.width), ("image", self.backbone.width)):
            personal |= layers(f"{tower}.down", self.adapted, width, inner, rng)
            personal |= layers(f"{tower}.up", self.adapted, inner, width, rng)
        return personal

    # -- the client -----

    def added(self, theta: State, tower: str, index: int, normed: Tensor) -> Tensor:
        """What the adapter of block ``index`` adds, from the block's normed inputs (K, ..., d) of each client."""
        layer = index - (self.depths[tower] - self.adapted)
        if layer < 0:
            return torch.zeros_like(normed[..., :1])

        def mapped(name: str, x: Tensor) -> Tensor:
            return torch.baddbmm(theta[f"{name}.bias"][:, layer, None], x, theta[f"{name}.weight"][:, layer].mT)

        beta: float = self.params.scale
        rows = with_gradient_times(beta, normed.flatten(1, -2))  # towards earlier blocks the path is damped by beta
        inner = mapped("shared", mapped(f"{tower}.down", rows).relu()).relu()
        outer = with_gradient_times(1 / beta, mapped(f"{tower}.up", inner))  # weights learn as if beta were 1
        return beta * outer.view(normed.shape)

    @cached_property
    def prompts(self) -> Prompts:
        template = str(self.params.template or self.backbone.templates[0])
        return self.backbone.text.tokenise(fill_template(template, self.task.class_names))

    def class_features(self, theta: State) -> Tensor:
        text = self.backbone.text
        clients = len(theta["shared.bias"])
        no_context = text.positions.new_empty(clients, 0, text.width)

        def adapted(index: int, normed: Tensor) -> Tensor:
            return self.added(theta, "text", index, normed)

        features: Tensor = text(self.prompts, no_context, adapted)
        return features

    def adapted_images(self, theta: State, batch: Batch) -> Tensor:
        """Image features with the client's adapters, (K, B, d)."""

        def block_pass(index: int, block: Any, tokens: Tensor, rows: int) -> Tensor:
            added = self.added(theta, "image", index, batch.pad(block.norm1(tokens[:, :rows])))
            return block_rows(block, tokens, rows) + batch.pack(added)

        features = self.backbone.cls(batch.images, block_pass=block_pass)
        return batch.pad(self.backbone.project(features))

    def logits(self, theta: State, batch: Batch) -> Tensor:
        return self.cosine_logits(self.adapted_images(theta, batch), self.current_classes(theta, batch))


def layers(name: str, count: int, inputs: int, outputs: int, rng: torch.Generator) -> State:
    """``count`` affine maps: Kaiming's draw by the number of outputs, biases of zero."""
    weight = (2 / outputs) ** 0.5 * torch.randn(count, outputs, inputs, generator=rng)
    return {f"{name}.weight": weight, f"{name}.bias": torch.zeros(count, outputs)}


def with_gradient_times(factor: float, x: Tensor) -> Tensor:
    """``x`` itself, with its gradient multiplied."""
    return x.detach() + factor * (x - x.detach())
