"""pFedBayesPT: each image has a prompt of its own, drawn from a posterior that encoders read off its frozen tokens.

Three variants of one model. -D: the prompt is the encoders' mean. -G: a Gaussian around it, held to a prior. Full: the
encoders see randomly masked tokens, so that the Gaussian's parameters are random too (a semi-implicit posterior).
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.harness.backbone import Edit
from fedprompt.harness.batch import Batch
from fedprompt.harness.errors import UserError
from fedprompt.methods._bayes_params import GaussianParams, InstanceParams, SemiImplicitParams
from fedprompt.methods._contract import State
from fedprompt.methods._headed import HeadedMethod, cross_entropy, linear, prompt_init
from fedprompt.methods._semi_implicit import Gaussian, importance_bound, kl_normal, log_normal, mixture_gain
from fedprompt.methods._token_encoder import encode, mlp_floats, mlp_init, norm_init, normalised

LOGVAR_RANGE = (-10.0, 4.0)


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


class PFedBayesPTD(HeadedMethod):
    name, title, order = "pfedbayespt-d", "pFedBayesPT-D", 60
    paper = "Ye et al., Instance-wise Personalized FL via Semi-Implicit Bayesian Prompt Tuning (CIKM 2025)"
    payload_formula = "D_g*T*d + D_p*(2d + (M+1)h + h + hv + v) each way (+ C*d + C with a global head)"
    needs = frozenset({"images", "prompts", "layer inputs"})
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

    def loss(self, theta: State, batch: Batch) -> Tensor:
        """Cross-entropy with one drawn prompt an image: all of -D's training, and how any variant adapts a head."""
        mean = batch.stage == "adapt" and self.params.unseen_head_prompt == "mean"
        noise, mask = (None, None) if mean else (self.noise(batch, 1)[0], self.masks(batch, 1)[0])
        return cross_entropy(self.forward(theta, batch, self.view(theta, batch), [mask], noise).logits, batch)

    def predict(self, theta: State, batch: Batch) -> Tensor:
        """Log of the mean probability over V draws."""
        return importance_bound(self.draws(theta, batch, self.params.samples))

    def predictions(self, theta: State, batch: Batch) -> dict[int, Tensor]:
        """Those of V = 1, 2, ... as well; each uses the first V of the same draws."""
        draws = self.draws(theta, batch, max(self.params.samples, self.params.samples_max))
        nested = {v: importance_bound(draws[:v]) for v in range(1, len(draws) + 1)}
        return {0: nested.get(self.params.samples, nested[1]), **(nested if len(nested) > 1 else {})}

    def draws(self, theta: State, batch: Batch, wanted: int) -> Tensor:
        """Log-probabilities (V, K, B, C); numbers for all draws are made, so that fewer see the first of the same."""
        made = max(self.params.samples, self.params.samples_max)
        pairs = list(zip(self.masks(batch, made), self.test_noise(batch, made), strict=True))[:wanted]
        if all(part is None for part in pairs[0]):
            pairs = pairs[:1]  # nothing is random: every draw would be the same
        view = self.view(theta, batch)
        passes = [self.forward(theta, batch, view, [mask], noise).logits for mask, noise in pairs]
        return torch.stack(passes).log_softmax(-1)

    def test_noise(self, batch: Batch, draws: int) -> list[Tensor | None]:  # noqa: ARG002
        return [None] * draws

    @torch.no_grad()
    def diagnostics(self, theta: State, batch: Batch) -> State:
        masks, noise = self.masks(batch, 1), self.noise(batch, 1)[0]
        return self.sizes(batch, self.forward(theta, batch, self.view(theta, batch), masks, noise))

    def sizes(self, batch: Batch, made: Pass) -> State:
        """Cross-entropy, the root mean square of the mean prompts, and the share of it that differs between images."""
        mean = batch.pad(made.psis[0].mean).flatten(2)
        centre = (mean.sum(1) / batch.mask.sum(1).clamp(min=1)[:, None])[:, None]
        square, spread = (batch.mean(x.square().mean(-1)) for x in (mean, mean - centre))
        return {"ce": cross_entropy(made.logits, batch), "mu": square.sqrt(), "mu_between": spread / square}


class PFedBayesPTG(PFedBayesPTD):
    name, title, order = "pfedbayespt-g", "pFedBayesPT-G", 61
    payload_formula = "D_g*T*d + D_p*(2d + 2((M+1)h + h + hv + v)) each way (+ C*d + C with a global head)"
    Params: ClassVar[type] = GaussianParams
    mlps = ("mean", "logvar")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.params.kl == "analytic" and self.params.importance > 1:
            raise UserError(
                f"{self.name}: kl = analytic has no meaning inside importance = {self.params.importance} weights; "
                "set kl=sampled."
            )

    @property
    def beta(self) -> float:
        """Weight of (log prior - log density) in nats."""
        if self.params.paper_literal:
            return 1.0
        size = self.instance_depth * self.params.instance_length * self.backbone.width
        return float(self.params.kl_weight / (size if self.params.kl_reduction == "mean" else 1))

    @property
    def prior_logvar(self) -> float:
        vpt = math.sqrt(2 / (3 * self.backbone.patch_size**2 + self.backbone.width))  # std of prompt_init's draws
        return 2 * math.log(vpt if self.params.prior == "vpt_scale" else self.params.prior_std)

    @property
    def logvar_init(self) -> float:
        if self.params.paper_literal:
            return 0.0
        if self.params.logvar_init is not None:
            return float(self.params.logvar_init)
        return self.prior_logvar if self.params.prior == "vpt_scale" else -4.0

    def clip_norm(self) -> float | None:
        return 1.0 if self.params.paper_literal else self.params.clip_norm

    def init_prompts(self, rng: torch.Generator) -> State:
        state = super().init_prompts(rng)
        state[self.output_bias("logvar")].fill_(self.logvar_init)
        if self.params.prior == "learned_global":
            shape = (self.instance_depth, self.params.instance_length, self.backbone.width)
            state |= {"prior.mean": torch.zeros(shape), "prior.logvar": torch.full(shape, self.prior_logvar)}
        return state

    def prompt_floats(self) -> int:
        learned = self.params.prior == "learned_global"
        size = self.instance_depth * int(self.params.instance_length) * self.backbone.width
        return super().prompt_floats() + (2 * size if learned else 0)

    def noise(self, batch: Batch, draws: int) -> list[Tensor | None]:
        shape = (draws, self.instance_depth, self.params.instance_length, self.backbone.width)
        return list(batch.pack(batch.normal(*shape)).unbind(1))

    def test_noise(self, batch: Batch, draws: int) -> list[Tensor | None]:
        return self.noise(batch, draws) if self.params.test_prompt == "sampled" else super().test_noise(batch, draws)

    def posterior(self, encoder: State, z: Tensor, mask: Tensor | None) -> Gaussian:
        logvar = encode(encoder, "logvar", z, mask, self.params.act, self.params.mask_position).clamp(*LOGVAR_RANGE)
        if self.params.cov == "isotropic":
            logvar = logvar.mean((-2, -1), keepdim=True).expand_as(logvar)
        return Gaussian(super().posterior(encoder, z, mask).mean, logvar)

    def prior(self, theta: State, batch: Batch, made: Pass) -> Gaussian:
        """p(p|x). The posterior without masks, where it is wanted, is the last of the pass."""
        if self.params.prior == "learned_global":
            return Gaussian(batch.rows(theta["prior.mean"]), batch.rows(theta["prior.logvar"]))
        if self.params.prior == "unmasked_encoder":
            return Gaussian(*(part.detach() for part in made.psis[-1]))
        return Gaussian(made.prompt.new_zeros(()), made.prompt.new_full((), self.prior_logvar))

    def sampled_pass(
        self, theta: State, batch: Batch, view: View, masks: list[Tensor | None], noise: Tensor | None
    ) -> tuple[Pass, Gaussian]:
        """A prompted pass with the prior that belongs to it."""
        unmasked: list[Tensor | None] = [None] if self.params.prior == "unmasked_encoder" else []
        made = self.forward(theta, batch, view, [*masks, *unmasked], noise)
        return made, self.prior(theta, batch, made)

    def loss(self, theta: State, batch: Batch) -> Tensor:
        if batch.stage == "adapt":
            return super().loss(theta, batch)
        j, s, shared = self.params.importance, self.params.mixture, self.params.mix_shared
        noise, own, first = self.noise(batch, j), self.masks(batch, j), self.masks(batch, s)
        further = [first if shared or i == 0 else self.masks(batch, s) for i in range(j)]
        view = self.view(theta, batch)
        weights = [self.log_weight(theta, batch, view, [own[i], *further[i]], noise[i]) for i in range(j)]
        return -batch.mean(importance_bound(torch.stack(weights)))

    def log_weight(
        self, theta: State, batch: Batch, view: View, masks: list[Tensor | None], noise: Tensor | None
    ) -> Tensor:
        """log p(y|p,x) + beta (log p(p|x) - log Omega(p)) for one p an image, (K, B)."""
        made, prior = self.sampled_pass(theta, batch, view, masks, noise)
        own, *others = [log_normal(made.prompt, psi) for psi in made.psis[: len(masks)]]
        if self.params.kl == "analytic":
            gap = -kl_normal(made.psis[0], prior)
        else:
            gap = (log_normal(made.prompt, prior) - own).sum(-1)
        gain = mixture_gain(own, others, self.params.mixture_level == "per_layer")
        likelihood = -F.cross_entropy(made.logits.transpose(1, 2), batch.labels, reduction="none")
        return likelihood + self.beta * batch.pad(gap + gain)

    @torch.no_grad()
    def diagnostics(self, theta: State, batch: Batch) -> State:
        """Adds Delta, a draw of A_S (of one further psi where S = 0), sigma and the KL in nats."""
        masks, noise = self.masks(batch, 1 + max(1, self.params.mixture)), self.noise(batch, 1)[0]
        made, prior = self.sampled_pass(theta, batch, self.view(theta, batch), masks, noise)
        own, *others = [log_normal(made.prompt, psi) for psi in made.psis[: len(masks)]]
        per_image = {
            "delta": torch.stack([(other - own).sum(-1) for other in others]).mean(0),
            "a_s": mixture_gain(own, others, self.params.mixture_level == "per_layer"),
            "sigma": made.psis[0].std.mean((-3, -2, -1)),
            "kl": kl_normal(made.psis[0], prior),
        }
        return self.sizes(batch, made) | {name: batch.mean(batch.pad(value)) for name, value in per_image.items()}


class PFedBayesPT(PFedBayesPTG):
    name, title, order = "pfedbayespt", "pFedBayesPT", 62
    Params: ClassVar[type] = SemiImplicitParams


def draw(psi: Gaussian, noise: Tensor | None) -> Tensor:
    """The reparameterised sample, or the mean."""
    return psi.mean if noise is None else psi.mean + psi.std * noise
