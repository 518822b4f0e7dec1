"""pFedBayesPT-G: the prompt of an image is drawn from a Gaussian around the encoders' mean, held to a prior."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.harness.core.errors import UserError
from fedprompt.harness.model.batch import Batch
from fedprompt.methods._bayes_params import GaussianParams
from fedprompt.methods._contract import State
from fedprompt.methods._instance_prompts import Pass, View
from fedprompt.methods._semi_implicit import Gaussian, importance_bound, kl_normal, log_normal, mixture_gain
from fedprompt.methods._token_encoder import encode
from fedprompt.methods.pfedbayespt_d import PFedBayesPTD

LOGVAR_RANGE = (-10.0, 4.0)


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
