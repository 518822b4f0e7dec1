"""The parameters of pFedBayesPT's three variants, with the choices that the paper leaves open."""

import math
from dataclasses import dataclass

from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._headed import PromptParams, revised
from fedprompt.methods._token_encoder import ACTIVATIONS


@dataclass(frozen=True)
class DeterministicParams(PromptParams):
    """Prompts are the encoders' means, seen through masks if asked for."""

    lr: float = revised(PromptParams, "lr", paper="0.01")
    encoder_lr: float = option(
        1e-3, "learning rate of the encoders", low=0, paper="tuned", grid=(1e-4, 5e-4, 1e-3, 5e-3, 1e-2)
    )
    depth_global: int = option(0, "blocks with global prompts; 0 means all", low=0, paper="tuned in 1..12")
    depth_instance: int = option(0, "blocks with instance prompts; 0 means all", low=0, paper="tuned in 1..12")
    after_depth: str = option("propagate", "prompt rows after the last prompted block", choices=("propagate", "drop"))
    instance_length: int = option(1, "instance prompt tokens of each prompted block", low=1, paper="1")
    hidden: int = option(64, "hidden units of the encoders' MLPs; 0 means linear (32, 64, 128 are usual)", low=0)
    act: str = option("gelu", "activation of the MLPs", choices=tuple(ACTIVATIONS))
    ln_affine: bool = option(True, "gain and bias in the encoders' layer norm, shared by a layer's MLPs")
    mask_keep_prob: float = option(
        1.0, "chance that an encoder sees a token; CLS is always seen; 1 means no masks", low=0.01, high=1
    )
    mask_position: str = option("before_ln", "where tokens are masked", choices=("before_ln", "after_ln"))
    mask_rescale: bool = option(False, "divide kept tokens by the chance (only after_ln: before it, LN undoes it)")
    mask_share: str = option("none", "what shares one mask", choices=("none", "layers", "batch"))
    samples: int = option(1, "V: mask draws at test, probabilities averaged", low=1)
    samples_max: int = option(10, "draws made at test, of which the first V are used: other V see the same", low=1)
    feature_source: str = option(
        "frozen_pass",
        "tokens the encoders read: of a pass without prompts, or of the prompted pass itself",
        choices=("frozen_pass", "inline"),
    )
    unseen_head_prompt: str = option(
        "sampled", "prompts while a new client fits its head: as in training, or the mean", choices=("sampled", "mean")
    )

    def __post_init__(self) -> None:
        if self.mask_rescale and self.mask_position == "before_ln":
            raise UserError(
                "pfedbayespt: mask_rescale = true does nothing with mask_position = before_ln, because LN undoes it; "
                "set mask_position=after_ln too."
            )


@dataclass(frozen=True)
class GaussianParams(DeterministicParams):
    """Prompts are drawn, and a KL term or importance weights hold their density near a prior."""

    cov: str = option("diag", "a variance for every number, or one for each layer", choices=("diag", "isotropic"))
    logvar_init: float | None = option(
        None, "first log-variance; none means -4, the prior's with vpt_scale, 0 with paper_literal", low=-10, high=4
    )
    prior: str = option(
        "std_normal",
        "p(p|x): N(0, prior_std^2), VPT's first draw, a learned Gaussian, or the encoders without masks",
        choices=("std_normal", "vpt_scale", "learned_global", "unmasked_encoder"),
    )
    prior_std: float = option(1.0, "of std_normal, and where learned_global starts", low=1e-3)
    kl: str = option("analytic", "the KL term: in closed form or by the drawn p", choices=("analytic", "sampled"))
    kl_reduction: str = option("mean", "the KL term over the prompt's dimensions", choices=("mean", "sum"), paper="sum")
    kl_weight: float = option(1.0, "weight of the KL term; 0 means none", low=0, paper="1", grid=(1.0, 0.1, 0.01, 1e-3))
    mixture: int = option(0, "S: further psi in the mixture that stands for the density of p", low=0)
    mixture_level: str = option("joint", "the mixture is over", choices=("joint", "per_layer"))
    mix_shared: bool = option(True, "the J importance samples share the S further psi")
    importance: int = option(1, "J: importance samples, a prompted pass each", low=1, paper="1")
    clip_norm: float | None = option(None, "largest norm of a client's gradient; none means any", low=1e-6)
    paper_literal: bool = option(False, "the formulas as printed: summed KL, weight 1, logvar_init 0; clip_norm 1")
    test_prompt: str = option("mean", "prompt at test, given a mask", choices=("mean", "sampled"), paper="mean")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl == "analytic" and self.importance > 1:
            raise UserError(
                f"pfedbayespt: kl = analytic has no meaning inside importance = {self.importance} weights; "
                "set kl=sampled."
            )

    def beta(self, dimensions: int) -> float:
        """Weight of log p(p|x) - log Omega(p) for a p of so many dimensions."""
        if self.paper_literal:
            return 1.0
        return self.kl_weight / (dimensions if self.kl_reduction == "mean" else 1)

    def largest_norm(self) -> float | None:
        return 1.0 if self.paper_literal else self.clip_norm

    def prior_logvar(self, patch_size: int, width: int) -> float:
        """Log-variance of a Gaussian prior; a learned one starts there."""
        vpt = math.sqrt(2 / (3 * patch_size**2 + width))  # std of prompt_init's draws
        return 2 * math.log(vpt if self.prior == "vpt_scale" else self.prior_std)

    def first_logvar(self, prior_logvar: float) -> float:
        """Where the posterior's log-variance starts."""
        if self.paper_literal:
            return 0.0
        if self.logvar_init is not None:
            return self.logvar_init
        return prior_logvar if self.prior == "vpt_scale" else -4.0


@dataclass(frozen=True)
class SemiImplicitParams(GaussianParams):
    """The paper's defaults: masks make the density itself random, a mixture bounds it."""

    mask_keep_prob: float = revised(GaussianParams, "mask_keep_prob", default=0.9, paper="0.9")
    mixture: int = revised(GaussianParams, "mixture", default=1, paper="1")
    kl: str = revised(GaussianParams, "kl", default="sampled")
    samples: int = revised(GaussianParams, "samples", default=5, paper="5")
