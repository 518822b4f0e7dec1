"""pFedBayesPT-D: the prompt of an image is the encoders' mean, and training is by cross-entropy alone."""

import torch
from torch import Tensor

from fedprompt.harness.model.batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods._instance_prompts import InstancePrompts, Pass
from fedprompt.methods._semi_implicit import importance_bound


class PFedBayesPTD(InstancePrompts):
    name, title, order = "pfedbayespt-d", "pFedBayesPT-D", 60
    paper = "Ye et al., Instance-wise Personalized FL via Semi-Implicit Bayesian Prompt Tuning (CIKM 2025)"
    payload_formula = "D_g*T*d + D_p*(2d + (M+1)h + h + hv + v) each way (+ C*d + C with a global head)"
    needs = frozenset({"images", "prompts", "layer inputs"})

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
