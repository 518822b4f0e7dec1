"""Prompts of an image's own: encoders read its frozen tokens, perhaps masked, and give a Gaussian over prompts."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.harness.core.errors import UserError
from fedprompt.harness.model.backbone import Edit
from fedprompt.harness.model.batch import Batch
from fedprompt.methods._bayes_params import InstanceParams
from fedprompt.methods._contract import State
from fedprompt.methods._headed import HeadedMethod, linear, prompt_init
from fedprompt.methods._semi_implicit import Gaussian
from fedprompt.methods._token_encoder import encode, mlp_floats, mlp_init, norm_init, normalised


class View(NamedTuple):
    """What all draws of a batch share; n packed images."""

    prompts: Tensor  # (n, D_g, T, d) global prompts
    encoder: State  # each image's copy of its client's encoders, (n, D_p, ...)
    z: Tensor | None  # (n, D_p, 1+M, d) normalised frozen tokens; None where they come with the prompted pass


class Pass(NamedTuple):
    """One prompted pass."""

    logits: Tensor  # (K, B, C)
    prompt: Tensor  # (n, D_p, v, d)
    psis: list[Gaussian]  # of every mask that was given; the prompt was drawn from the first


class InstancePrompts(HeadedMethod):
    """The model that the variants of pFedBayesPT share; what they train it on and predict with is theirs."""

    Params: ClassVar[type] = InstanceParams
    mlps: tuple[str, ...] = ("mean",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.params.mask_rescale and self.params.mask_position == "before_ln":
            raise UserError(
                f"{self.name}: mask_rescale = true does nothing with mask_position = before_ln, because LN undoes it; "
                "set mask_position=after_ln too."
            )
        self.global_depth = self._depth("depth_global")
        self.instance_depth = self._depth("depth_instance")

    def _depth(self, option: str) -> int:
        wanted, blocks = int(getattr(self.params, option)), self.backbone.depth
        if wanted > blocks:
            raise UserError(
                f"{self.name}: {option} = {wanted}, but backbone {self.backbone.name!r} has {blocks} blocks; "
                f"use 1 to {blocks}, or 0 for all."
            )
        return wanted or blocks

    # -- state ----------------------------------------------------------------------------------------------------

    def init_prompts(self, rng: torch.Generator) -> State:
        p, vit = self.params, self.backbone
        prompts = prompt_init((self.global_depth, p.length, vit.width), vit.patch_size, rng)
        encoder = norm_init(self.instance_depth, vit.width) if p.ln_affine else {}
        for name in self.mlps:
            encoder |= mlp_init(name, self.instance_depth, vit.tokens, p.hidden, p.instance_length, rng)
        return {"prompts": prompts, **{f"encoder.{name}": tensor for name, tensor in encoder.items()}}

    def output_bias(self, mlp: str) -> str:
        return f"encoder.{mlp}.{1 if self.params.hidden else 0}.bias"

    def prompt_floats(self) -> int:
        p, vit = self.params, self.backbone
        layer = mlp_floats(vit.width, vit.tokens, p.hidden, p.instance_length, len(self.mlps), p.ln_affine)
        return self.global_depth * int(p.length) * vit.width + self.instance_depth * layer

    def rates(self) -> dict[str, float]:
        slow = ("encoder.", "prior.")
        rates = {k: self.params.encoder_lr if k.startswith(slow) else lr for k, lr in super().rates().items()}
        # It shifts all channels of a prompt alike, and the block's LN takes that away: only a density can train it.
        return {k: rate for k, rate in rates.items() if "logvar" in self.mlps or k != self.output_bias("mean")}

    # -- random numbers -------------------------------------------------------------------------------------------

    def masks(self, batch: Batch, draws: int) -> list[Tensor | None]:
        """Masks (n, D_p, 1+M), one number a token; None where nothing is masked."""
        keep, share = self.params.mask_keep_prob, self.params.mask_share
        if keep == 1:
            return [None] * draws
        layers = 1 if share == "layers" else self.instance_depth
        uniform = batch.uniform(draws, layers, self.backbone.tokens - 1)
        if share == "batch":
            uniform = uniform[:, :1].expand_as(uniform)
        kept = (batch.pack(uniform) < keep).to(uniform.dtype) / (keep if self.params.mask_rescale else 1)
        seen = F.pad(kept, (1, 0), value=1).expand(-1, -1, self.instance_depth, -1)  # CLS is never masked
        return list(seen.unbind(1))

    def noise(self, batch: Batch, draws: int) -> list[Tensor | None]:  # noqa: ARG002
        """Standard normal numbers in the shape of the instance prompts; None: the mean."""
        return [None] * draws

    # -- the model ------------------------------------------------------------------------------------------------

    def posterior(self, encoder: State, z: Tensor, mask: Tensor | None) -> Gaussian:
        """psi given normalised tokens, for all layers at once or for one."""
        mean = encode(encoder, "mean", z, mask, self.params.act, self.params.mask_position)
        return Gaussian(mean, torch.full_like(mean, -math.inf))

    def view(self, theta: State, batch: Batch) -> View:
        encoder = {k.removeprefix("encoder."): batch.rows(v) for k, v in theta.items() if k.startswith("encoder.")}
        frozen = self.params.feature_source == "frozen_pass"
        z = normalised(self.backbone.layer_inputs(batch.images, self.instance_depth)) if frozen else None
        return View(batch.rows(theta["prompts"]), encoder, z)

    def forward(self, theta: State, batch: Batch, view: View, masks: list[Tensor | None], noise: Tensor | None) -> Pass:
        """Draw p from the posterior of the first mask and classify with it; the others are for its density."""
        if view.z is not None:
            psis = [self.posterior(view.encoder, view.z, mask) for mask in masks]
            prompt = draw(psis[0], noise)
            edit = self._edit(view.prompts, lambda block, _: prompt[:, block])
            features = self.backbone.cls(batch.images, edit)
        else:
            found: list[list[Gaussian]] = []
            drawn: list[Tensor] = []

            def instance(block: int, tokens: Tensor) -> Tensor:
                layer, z = {k: v[:, block] for k, v in view.encoder.items()}, normalised(tokens)
                found.append([self.posterior(layer, z, None if m is None else m[:, block]) for m in masks])
                drawn.append(draw(found[-1][0], None if noise is None else noise[:, block]))
                return drawn[-1]

            features = self.backbone.cls(batch.images, self._edit(view.prompts, instance))
            prompt = torch.stack(drawn, 1)
            psis = [
                Gaussian(*(torch.stack(part, 1) for part in zip(*layers, strict=True)))
                for layers in zip(*found, strict=True)
            ]
        return Pass(linear(batch.pad(features), theta), prompt, psis)

    def _edit(self, prompts: Tensor, instance: Callable[[int, Tensor], Tensor]) -> Edit:
        """Rows after CLS: global prompts, then instance prompts, each renewed at every block up to its own depth."""
        sizes = (self.params.length, self.params.instance_length)
        depths = (self.global_depth, self.instance_depth)
        stay = self.params.after_depth == "propagate"

        def edit(block: int, tokens: Tensor) -> Tensor:
            there = [n if block and (stay or block <= depth) else 0 for n, depth in zip(sizes, depths, strict=True)]
            cls, old, own, patches = tokens.split([1, *there, tokens.shape[1] - 1 - sum(there)], dim=1)
            if block < depths[0]:
                old = prompts[:, block]
            if block < depths[1]:
                own = instance(block, torch.cat([cls, patches], dim=1))
            kept = [rows for rows, depth in zip((old, own), depths, strict=True) if stay or block < depth]
            return torch.cat([cls, *kept, patches], dim=1)

        return edit


def draw(psi: Gaussian, noise: Tensor | None) -> Tensor:
    """The reparameterised sample, or the mean."""
    return psi.mean if noise is None else psi.mean + psi.std * noise
