"""Instance prompts: encoders read a prompt off each image's frozen tokens, as a Gaussian that may be masked and drawn.

The half of pFedBayesPT that turns images into features: mask, encode, draw, and pass. What is trained and predicted
with them is in `pfedbayespt.py`.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.backbone import Edit
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._deep_rows import Kind, deep_rows
from fedprompt.methods._densities import Gaussian
from fedprompt.methods._headed import HeadedMethod
from fedprompt.methods._mixins import FrozenDepth
from fedprompt.methods._token_encoder import encode, mlp_init, norm_init, normalised, stacked_masks

LOGVAR_RANGE = (-10.0, 4.0)


class View(NamedTuple):
    """What all draws for a batch share; n packed images."""

    theta: State
    batch: Batch
    prompts: Tensor  # (n, D_g, T, d): global prompts
    encoder: State  # (K, D_p, ...): the clients' encoders
    tokens: Tensor | None  # (D_p, 1+M, n, d): normalised frozen tokens; None if read off the prompted pass


class Pass(NamedTuple):
    """One prompted pass."""

    features: Tensor  # (K, B, d)
    prompt: Tensor  # (n, D_p, v, d): p
    psis: list[Gaussian]  # one for each mask; p was drawn from the first


class InstancePrompts(HeadedMethod, FrozenDepth):
    """Global prompts that all images share, and one instance prompt per image and block."""

    deterministic: ClassVar[bool] = False  # then no MLP of the variance, no noise, no density

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.global_depth = self.prompted_blocks("depth_global")
        self.instance_depth = self.prompted_blocks("depth_instance")
        self.prompt_shape = (self.instance_depth, int(self.params.instance_length), self.backbone.width)
        self.mlps = ("mean",) if self.deterministic else ("mean", "logvar")

    @classmethod
    def input_depth(cls, params: Any) -> int | None:
        """The encoders' layers; none where they read the prompted pass."""
        return params.depth_instance or None if params.feature_source == "frozen_pass" else 0

    def init_prompts(self, rng: torch.Generator) -> State:
        p, vit = self.params, self.backbone
        prompts = self.draw_prompts((self.global_depth, p.length, vit.width), rng, range(self.global_depth))
        encoder = norm_init(self.instance_depth, vit.width) if p.ln_affine else {}
        for name in self.mlps:
            encoder |= mlp_init(name, self.instance_depth, vit.tokens, p.hidden, p.instance_length, rng)
        return {"prompts": prompts, **{f"encoder.{name}": tensor for name, tensor in encoder.items()}}

    # -- mask --------------------------------------------------------------------------------------------------------

    def masks(self, batch: Batch, draws: int) -> list[Tensor | None]:
        """Masks (n, D_p, 1+M), one number for each token; None where nothing is masked."""
        keep, share = self.params.mask_keep_prob, self.params.mask_share
        if keep == 1:
            return [None] * draws
        layers = 1 if share == "layers" else self.instance_depth
        uniform = batch.uniform(draws, layers, self.backbone.tokens - 1)
        if share == "batch":
            uniform = uniform[:, :1].expand_as(uniform)
        visible = (batch.pack(uniform) < keep).to(uniform.dtype) / (keep if self.params.mask_rescale else 1)
        with_cls = F.pad(visible, (1, 0), value=1).expand(-1, -1, self.instance_depth, -1)
        return list(with_cls.unbind(1))

    # -- encode ------------------------------------------------------------------------------------------------------

    def view(self, theta: State, batch: Batch) -> View:
        encoder = {k.removeprefix("encoder."): v for k, v in theta.items() if k.startswith("encoder.")}
        frozen = self.params.feature_source == "frozen_pass"
        tokens = normalised(batch.layer_inputs.permute(1, 2, 0, 3).contiguous()) if frozen else None
        return View(theta, batch, batch.rows(theta["prompts"]), encoder, tokens)

    def posteriors(
        self, encoder: State, tokens: Tensor, masks: Sequence[Tensor | None], sizes: Sequence[int]
    ) -> list[Gaussian]:
        """psi of every mask given normalised tokens, for all layers at once or for one."""
        stacked = stacked_masks(masks, tokens)
        rows = encode(encoder, self.mlps, tokens, stacked, sizes, self.params.act, self.params.mask_position)
        mean, *logvars = rows
        if not logvars:
            psi = Gaussian.point(mean)
        else:
            logvar = logvars[0].clamp(*LOGVAR_RANGE)
            if self.params.cov == "isotropic":
                logvar = logvar.mean((-2, -1), keepdim=True).expand_as(logvar)
            psi = Gaussian(mean, logvar)
        each = [Gaussian(*parts) for parts in zip(psi.mean.unbind(), psi.logvar.unbind(), strict=True)]
        return each if stacked is not None else each * len(masks)  # without masks all psi are the same

    # -- draw --------------------------------------------------------------------------------------------------------

    def noise(self, batch: Batch, draws: int) -> list[Tensor | None]:
        """eps of every draw, (n, D_p, v, d); None means that p is the mean."""
        if self.deterministic:
            return [None] * draws
        return list(batch.pack(batch.normal(draws, *self.prompt_shape)).unbind(1))

    def forward(self, view: View, masks: Sequence[Tensor | None], noise: Tensor | None) -> Pass:
        """Draw p from the psi of the first mask and look at images with it; further masks give psi for its density."""
        if view.tokens is None:
            return self.inline_forward(view, masks, noise)
        psis = self.posteriors(view.encoder, view.tokens, masks, view.batch.sizes)
        prompt = psis[0].draw(noise)
        return Pass(self.features_with(view, lambda block, _: prompt[:, block]), prompt, psis)

    def inline_forward(self, view: View, masks: Sequence[Tensor | None], noise: Tensor | None) -> Pass:
        """The same with one pass less: encode and draw block by block, from the tokens that enter it."""
        layers: list[list[Gaussian]] = []
        prompts: list[Tensor] = []

        def instance(block: int, tokens: Tensor) -> Tensor:
            here = slice(block, block + 1)
            encoder, z = {k: v[:, here] for k, v in view.encoder.items()}, normalised(tokens.transpose(0, 1))[None]
            seen = [None if mask is None else mask[:, here] for mask in masks]
            layers.append(self.posteriors(encoder, z, seen, view.batch.sizes))
            prompts.append(layers[-1][0].draw(None if noise is None else noise[:, here]))
            return prompts[-1][:, 0]

        features = self.features_with(view, instance)
        return Pass(features, torch.cat(prompts, 1), [Gaussian.joined(psi) for psi in zip(*layers, strict=True)])

    def features_with(self, view: View, instance: Callable[[int, Tensor], Tensor]) -> Tensor:
        images = view.batch.images if view.tokens is None else view.batch.layer_inputs[:, 0]  # the latter are embedded
        return view.batch.pad(self.backbone.cls(images, self.edit(view.prompts, instance)))

    def edit(self, prompts: Tensor, instance: Callable[[int, Tensor], Tensor]) -> Edit:
        """Rows after CLS: global prompts, then instance prompts, each renewed up to its own depth."""
        shared = Kind(self.params.length, self.global_depth, lambda block, _: prompts[:, block])
        return deep_rows(
            [shared, Kind(self.params.instance_length, self.instance_depth, instance)], self.params.after_depth
        )
