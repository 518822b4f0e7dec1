"""pFedBayesPT: each image has its own prompt, drawn from a posterior that encoders read off its frozen tokens.

One training step (Algorithm 1, with the paper's equation numbers), for every image x with label y and frozen tokens f:

    mask     m ~ Bern(pi) for each layer and token, CLS always 1                                          (16, 17)
    encode   psi = (mu, log sigma^2) = MLPs(LN(f * m))                                                    (18 - 20)
    draw     p = mu + sigma * eps, inserted after the global prompts, which all images share              (21)
    bound    J times: log w = log p(y|p,x) + beta (log p(p|x) - log Omega(p)), where Omega is the mean
             density of p under its psi and S others; maximise log mean w                                 (24 - 26)

    predict  with p = mu, probabilities averaged over V masks                                             (27)

pfedbayespt-d (deterministic): p = mu, trained by cross-entropy. pfedbayespt-g (Gaussian): no masks and no other psi.
pfedbayespt: all of it; the masks make psi random and thus the posterior semi-implicit.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._densities import Gaussian, kl_normal, log_mean_exp, log_normal, mixture_gain
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods._instance_prompts import InstancePrompts, Pass, View
from fedprompt.methods._mixins import Diagnostics, SeveralDraws, Steps
from fedprompt.methods._pfedbayespt_params import DeterministicParams, GaussianParams, SemiImplicitParams


class PFedBayesPT(InstancePrompts, SeveralDraws, Steps, Diagnostics):
    """Shared: global prompts, encoders and, if learned, the prior. Private: nothing."""

    name, title, order = "pfedbayespt", "pFedBayesPT", 62
    paper = "Ye et al., Instance-wise Personalized FL via Semi-Implicit Bayesian Prompt Tuning (CIKM 2025)"
    payload_formula = "D_g*T*d + D_p*(2*d + 2*((M + 1)*h + h + h*v + v)) each way"
    needs = frozenset({"images", "prompts", "layer inputs"})
    Params: ClassVar[type] = SemiImplicitParams
    paper_policy = "global"  # Algorithm 1 averages the head; unseen clients fine-tune a "local" one

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.learned_prior = not self.deterministic and self.params.prior == "learned_global"
        if not self.deterministic:
            self.prior_logvar: float = self.params.prior_logvar(self.backbone.patch_size, self.backbone.width)
            self.beta: float = self.params.beta(math.prod(self.prompt_shape))

    # -- state: prompts, encoder.*, prior.*; the head ----------------------------------------------------------------

    def init_prompts(self, rng: torch.Generator) -> State:
        state = super().init_prompts(rng)
        if not self.deterministic:
            state[self.output_bias("logvar")].fill_(self.params.first_logvar(self.prior_logvar))
        if self.learned_prior:
            state["prior.mean"] = torch.zeros(self.prompt_shape)
            state["prior.logvar"] = torch.full(self.prompt_shape, self.prior_logvar)
        return state

    def output_bias(self, mlp: str) -> str:
        return f"encoder.{mlp}.{1 if self.params.hidden else 0}.bias"

    def rates(self) -> dict[str, float]:
        slow = ("encoder.", "prior.")
        rates = {k: self.params.encoder_lr if k.startswith(slow) else lr for k, lr in super().rates().items()}
        if self.deterministic:
            # It shifts all channels of a prompt alike, and the block's LN undoes that: only a density can train it.
            del rates[self.output_bias("mean")]
        return rates

    def clip_norm(self) -> float | None:
        return None if self.deterministic else self.params.largest_norm()

    # -- bound -------------------------------------------------------------------------------------------------------

    def loss(self, theta: State, batch: Batch) -> Tensor:
        """Minus the bound; cross-entropy alone where there is no density, and where a client only fits its head."""
        view = self.view(theta, batch)
        if self.deterministic or batch.stage == "adapt":
            mean = batch.stage == "adapt" and self.params.unseen_head_prompt == "mean"
            noise, masks = ([None], [None]) if mean else (self.noise(batch, 1), self.masks(batch, 1))
            return cross_entropy(self.classify(self.forward(view, masks, noise[0]).features, theta), batch)
        J, S = self.params.importance, self.params.mixture  # noqa: N806
        noise, masks = self.noise(batch, J), self.masks(batch, J)
        further = [self.masks(batch, S)] * J if self.params.mix_shared else [self.masks(batch, S) for _ in range(J)]
        weights = [self.log_weight(view, [masks[j], *further[j]], noise[j]) for j in range(J)]
        return -batch.mean(log_mean_exp(torch.stack(weights)))

    def log_weight(self, view: View, masks: list[Tensor | None], noise: Tensor | None) -> Tensor:
        """log w = log p(y|p,x) + beta (log p(p|x) - log Omega(p)) for one p of each image, (K, B)."""
        drawn, prior, (source, *others) = self.draw_with_densities(view, masks, noise)
        if self.params.kl == "analytic":
            gap = -kl_normal(drawn.psis[0], prior)
        else:
            gap = (log_normal(drawn.prompt, prior) - source).sum(-1)
        gain = mixture_gain(source, others, self.params.mixture_level == "per_layer")
        logits = self.classify(drawn.features, view.theta)
        likelihood = -F.cross_entropy(logits.transpose(1, 2), view.batch.labels, reduction="none")
        return likelihood + self.beta * view.batch.pad(gap + gain)

    def draw_with_densities(
        self, view: View, masks: list[Tensor | None], noise: Tensor | None
    ) -> tuple[Pass, Gaussian, list[Tensor]]:
        """A pass, the prior p(p|x) of its p, and log q(p|psi) for the psi of every mask, (n, D_p) each."""
        unmasked = [None] if self.params.prior == "unmasked_encoder" else []
        drawn = self.forward(view, [*masks, *unmasked], noise)
        if unmasked:
            prior = Gaussian(*(part.detach() for part in drawn.psis.pop()))
        elif self.learned_prior:
            prior = Gaussian(*(view.batch.rows(view.theta[name]) for name in ("prior.mean", "prior.logvar")))
        else:
            prior = Gaussian(drawn.prompt.new_zeros(()), drawn.prompt.new_full((), self.prior_logvar))
        return drawn, prior, [log_normal(drawn.prompt, psi) for psi in drawn.psis]

    # -- predict -----------------------------------------------------------------------------------------------------

    def predict(self, theta: State, batch: Batch) -> Tensor:
        """Log of the mean probability over V draws."""
        return log_mean_exp(self.log_probabilities(theta, batch, self.params.samples))

    def predictions(self, theta: State, batch: Batch) -> dict[int, Tensor]:
        """`predict`, and the same for V = 1, 2, ...; each uses the first V of the same draws."""
        draws = self.log_probabilities(theta, batch, max(self.params.samples, self.params.samples_max))
        nested = {v: log_mean_exp(draws[:v]) for v in range(1, len(draws) + 1)}
        return {0: nested.get(self.params.samples, nested[1]), **(nested if len(nested) > 1 else {})}

    def log_probabilities(self, theta: State, batch: Batch, draws: int) -> Tensor:
        """(V, K, B, C)."""
        features = batch.once(f"{draws} draws", lambda: self.drawn_features(theta, batch, draws))
        return torch.stack([self.classify(drawn, theta) for drawn in features]).log_softmax(-1)

    def drawn_features(self, theta: State, batch: Batch, draws: int) -> Tensor:
        """(V, K, B, d). Random numbers are drawn for all that a sweep needs, so that fewer draws are its first ones."""
        most = max(self.params.samples, self.params.samples_max)
        masks = self.masks(batch, most)[:draws]
        sampled = not self.deterministic and self.params.test_prompt == "sampled"
        noise = self.noise(batch, most)[:draws] if sampled else [None] * draws
        if masks[0] is None and noise[0] is None:
            draws = 1  # nothing is random: every draw would be the same
        view = self.view(theta, batch)
        return torch.stack([self.forward(view, [masks[v]], noise[v]).features for v in range(draws)])

    @torch.no_grad()
    def diagnostics(self, theta: State, batch: Batch) -> State:
        """Cross-entropy; root mean square of the mean prompts (mu) and the share of it that differs between images;
        with a density also Delta, a draw of A_S (of one further psi where S = 0), sigma and the KL in nats."""
        further = 0 if self.deterministic else max(1, self.params.mixture)
        masks, noise = self.masks(batch, 1 + further), self.noise(batch, 1)[0]
        view = self.view(theta, batch)
        per_image: State = {}
        if self.deterministic:
            drawn = self.forward(view, masks, noise)
        else:
            drawn, prior, (source, *others) = self.draw_with_densities(view, masks, noise)
            per_image = {
                "delta": torch.stack([(other - source).sum(-1) for other in others]).mean(0),
                "a_s": mixture_gain(source, others, self.params.mixture_level == "per_layer"),
                "sigma": drawn.psis[0].std.mean((-3, -2, -1)),
                "kl": kl_normal(drawn.psis[0], prior),
            }
        mean = batch.pad(drawn.psis[0].mean).flatten(2)
        count = batch.mask.sum(1)
        centre = (mean.sum(1) / count.clamp(min=1)[:, None])[:, None]
        square, spread = (batch.mean(x.square().mean(-1)) for x in (mean, mean - centre))
        between = spread / square * count / (count - 1).clamp(min=1)  # a mean of few images is too close to them
        fit = cross_entropy(self.classify(drawn.features, theta), batch)
        sizes = {"ce": fit, "mu": square.sqrt(), "mu_between": between}
        return sizes | {name: batch.mean(batch.pad(value)) for name, value in per_image.items()}


class PFedBayesPTG(PFedBayesPT):
    """Gaussian: no masks, one psi."""

    name, title, order = "pfedbayespt-g", "pFedBayesPT-G", 61
    Params: ClassVar[type] = GaussianParams


class PFedBayesPTD(PFedBayesPT):
    """Deterministic: prompts are means, trained by cross-entropy."""

    name, title, order = "pfedbayespt-d", "pFedBayesPT-D", 60
    payload_formula = "D_g*T*d + D_p*(2*d + (M + 1)*h + h + h*v + v) each way"
    Params: ClassVar[type] = DeterministicParams
    deterministic: ClassVar[bool] = True
