"""DP-FPL: a shared and a private context, added; what a client's images say about either is clipped and noised.

The private context is split again in every step into a product of two small factors and a constant rest. Noise goes to
the gradients of the small factors, where less of it is needed, and from them to the private context.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods._mixins import Diagnostics, Steps, StopGradients
from fedprompt.methods._text import TextMethod, TextParams

ORDERS = (*range(2, 64), 80, 128, 256, 512)  # of Renyi divergences that the accountant tries


@dataclass(frozen=True)
class DPFPLParams(TextParams):
    rank: int = option(8, "width of the two factors", low=1, paper="8")
    clip: float = option(10.0, "largest norm of one image's gradient", low=1e-6, paper="10, of a whole batch's")
    noise: float = option(1.0, "noise multiplier: its spread over the largest norm; 0 means no privacy", low=0)
    delta: float = option(1e-5, "delta of the privacy that is reported", low=1e-12, high=0.5, paper="1e-5")
    own_scale: float = option(
        0.1, "factor of the private gradient; 0.1 as in the public code, 1 is the gradient itself", low=0, paper="0.1"
    )
    recon: str = option("minus", "sign of the third term of the private gradient", choices=("minus", "plus"))


class DPFPL(TextMethod, Steps, Diagnostics, StopGradients):
    """Shared: one context. Private: another, and what the privacy accountant counts."""

    name = "dp-fpl"
    title = "DP-FPL"
    order = 300
    paper = "Tran et al., Privacy-Preserving Personalized Federated Prompt Learning for Multimodal LLMs (ICLR 2025)"
    payload_formula = "m*d_t each way"
    Params = DPFPLParams
    stop_gradients: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("context", "own"), "gradients are clipped image by image, noised and projected"
    )

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        return {"own": self.first_context(rng), "steps": torch.zeros(1), "sample": torch.zeros(1)}

    def rates(self) -> dict[str, float]:
        return dict.fromkeys(("context", "own"), self.params.lr)

    def context(self, theta: State) -> Tensor:
        return theta["context"] + theta["own"]

    def loss(self, theta: State, batch: Batch) -> Tensor:
        """Cross-entropy, with private gradients in place of its own."""
        fit, slopes = self.image_gradients(theta, batch)
        left, right = factors(theta["own"], batch.normal(self.backbone.text.width, self.rank)[:, 0])
        (shared,) = self.private_means([slopes], batch)
        to_left, to_right = self.private_means([slopes @ right.mT[:, None], left.mT[:, None] @ slopes], batch)
        private = full_gradient(to_left, to_right, left, right, 1 if self.params.recon == "plus" else -1)
        own_scale: float = self.params.own_scale
        surrogate = ((theta["context"] * shared) + (theta["own"] * own_scale * private)).sum((1, 2))
        return fit + surrogate - surrogate.detach()  # the value of one, the gradient of the other

    @property
    def rank(self) -> int:
        return min(int(self.params.rank), int(self.params.length))

    def image_gradients(self, theta: State, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss of each client, and the gradient of each image's in the context, (K, B, m, d_t)."""
        images = self.image_features(batch)
        with torch.enable_grad():
            context = self.context(theta).detach().requires_grad_()
            classes = self.encode(context)
        logits = self.cosine_logits(images, classes.detach())
        wrong = self.backbone.logit_scale * (logits.softmax(-1) - F.one_hot(batch.labels, logits.shape[-1]))
        rows = [  # one backward pass through the text tower per image
            torch.autograd.grad(classes, context, wrong[:, row, :, None] * images[:, row, None], retain_graph=True)[0]
            for row in range(images.shape[1])
        ]
        return cross_entropy(logits, batch), torch.stack(rows, dim=1)

    def private_means(self, slopes: list[Tensor], batch: Batch) -> list[Tensor]:
        """Means over a client's images of gradients (K, B, ...), clipped together image by image, plus noise."""
        clip: float = self.params.clip
        norms = torch.stack([slope.flatten(2).square().sum(-1) for slope in slopes]).sum(0).sqrt()
        factor = (clip / norms.clamp(min=1e-30)).clamp(max=1) * batch.mask
        images = batch.mask.sum(1).clamp(min=1)[:, None, None]
        means = []
        for slope in slopes:
            total = torch.einsum("kb,kb...->k...", factor, slope)
            noise = self.params.noise * clip * batch.normal(*slope.shape[2:])[:, 0] if self.params.noise else 0
            means.append((total + noise) / images)
        return means

    def observe(self, theta: State, batch: Batch) -> State:
        """What the accountant needs: steps so far and the largest sample of one."""
        if batch.stage != "train":
            return {}
        images = batch.mask.sum(1, keepdim=True)
        return {"steps": theta["steps"] + (images > 0), "sample": theta["sample"].maximum(images.to(theta["sample"]))}

    def diagnostics(self, theta: State, batch: Batch) -> State:
        """Epsilon of each client so far, for one of its images more or less. A step is two releases of one sample."""
        if not self.params.noise or theta["steps"].is_meta:
            return {}
        multiplier, sizes = self.params.noise / math.sqrt(2), self.task.train_counts[list(batch.clients)].sum(1)
        spent = [
            epsilon(multiplier, int(sample) / int(size), int(steps), self.params.delta)
            for sample, size, steps in zip(theta["sample"][:, 0], sizes, theta["steps"][:, 0], strict=True)
        ]
        return {"epsilon": torch.tensor(spent)}


def factors(own: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal columns (K, m, r) and rows (K, r, d), by a power iteration on (K, m, d) from ``start`` (K, d, r)."""
    left = torch.linalg.qr(own.detach() @ start)[0]
    return left, torch.linalg.qr(own.detach().mT @ left)[0].mT


def full_gradient(to_left: Tensor, to_right: Tensor, left: Tensor, right: Tensor, sign: int = -1) -> Tensor:
    """The gradient of the product from those of its factors; with a minus, the projection of the true one."""
    return to_left @ right + left @ to_right + sign * left @ (left.mT @ to_left) @ right


def epsilon(multiplier: float, share: float, steps: int, delta: float) -> float:
    """Of ``steps`` Gaussian releases, each of a sample of this share: the best bound by Renyi divergences."""
    if not steps:
        return 0.0

    def divergence(order: int) -> float:
        if share >= 1:
            return order / (2 * multiplier**2)
        terms = [
            math.lgamma(order + 1) - math.lgamma(k + 1) - math.lgamma(order - k + 1)
            + (order - k) * math.log1p(-share) + k * math.log(share) + (k * k - k) / (2 * multiplier**2)
            for k in range(order + 1)
        ]  # fmt: skip
        top = max(terms)
        return (top + math.log(sum(math.exp(term - top) for term in terms))) / (order - 1)

    best: float = min(steps * divergence(order) + math.log(1 / delta) / (order - 1) for order in ORDERS)
    return best
