"""FedPHA: a shared context of one length, private contexts of any length; only the private one predicts.

The private context is pulled towards its own projection on directions of the shared one and pushed away from that one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.text import Prompts
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods._mixins import StopGradients
from fedprompt.methods._text import CONTEXT_STD, TextMethod, TextParams


@dataclass(frozen=True)
class FedPHAParams(TextParams):
    own_lengths: str = option(
        "16", "lengths of private contexts, such as 8,16,32; clients take them in turn", paper="16; 16 and 32; 4 to 32"
    )
    rho: float = option(
        0.8, "share of the shared context's directions, the weakest, that make the subspace", low=0, high=1
    )
    alpha: float = option(1.0, "distance up to which the private features are pushed from the shared ones", low=0)
    svd: str = option(
        "thin",
        "subspace: weak directions within the shared context, or all but its strong ones",
        choices=("thin", "full"),
        paper="thin in the code",
    )
    svd_gradient: bool = option(
        False,
        "differentiate through the subspace, too; explodes where a singular value that counts meets one that does not",
        paper="true in the code",
    )


class FedPHA(TextMethod, StopGradients):
    """Shared: one context, used in training only. Private: another, of the client's own length, which predicts."""

    name = "fedpha"
    title = "FedPHA"
    order = 285
    paper = "Fang et al., FedPHA: Federated Prompt Learning for Heterogeneous Client Adaptation (ICML 2025)"
    payload_formula = "m*d_t each way"
    Params = FedPHAParams
    stop_gradients: ClassVar[Mapping[str, str]] = {"context": "the subspace is a constant of the step"}

    def __init__(self, params: FedPHAParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        try:
            self.lengths = [int(length) for length in params.own_lengths.split(",")]
        except ValueError:
            self.lengths = []
        if not self.lengths or min(self.lengths) < 1:
            raise UserError(f"fedpha: own_lengths = {params.own_lengths!r} are not lengths; write 16, or 8,16,32.")

    def init_personal(self, rng: torch.Generator, client: int) -> State:
        """The context has as many rows as the longest; those beyond the client's own length are zero and stay so."""
        length = self.lengths[client % len(self.lengths)]
        draw = CONTEXT_STD * torch.randn(max(self.lengths), self.backbone.text.width, generator=rng)
        rows = torch.arange(max(self.lengths)) < length
        return {"own": draw * rows[:, None], "own.length": torch.tensor([length])}

    def rates(self) -> dict[str, float]:
        return dict.fromkeys(("context", "own"), self.params.lr)

    # -- texts of contexts that differ in length -----------------------------------------------------------------------

    @cached_property
    def own_prompts(self) -> dict[int, Prompts]:
        """One set of tokenised prompts for each length: where a text ends depends on it."""
        names = self.task.class_names
        return {length: self.backbone.class_prompts(names, length) for length in sorted(set(self.lengths))}

    def encode_own(self, own: Tensor, lengths: Tensor) -> Tensor:
        """Features under contexts (K, longest, d_t) of which client k uses the first ``lengths[k]`` rows, (K, C, d)."""
        features = torch.zeros(())
        for length, prompts in self.own_prompts.items():
            of_length = self.backbone.text_features(own[:, :length], prompts)
            features = torch.where((lengths == length)[..., None], of_length, features)
        return features

    def class_features(self, theta: State) -> Tensor:
        return self.encode_own(theta["own"], theta["own.length"])

    # -- training ------------------------------------------------------------------------------------------------------

    def loss(self, theta: State, batch: Batch) -> Tensor:
        images, own, lengths = self.image_features(batch), theta["own"], theta["own.length"]
        context = theta["context"] if self.params.svd_gradient else theta["context"].detach()
        projector = subspace(context, self.params.rho, self.params.svd == "full")
        local, projected = self.encode_own(
            torch.cat([own, own @ projector]), torch.cat([lengths, lengths])
        ).chunk(2)  # fmt: skip
        shared = self.encode(theta["context"])
        fits = [cross_entropy(self.cosine_logits(images, classes), batch) for classes in (local, shared)]
        pull = (local - projected).square().mean((1, 2))
        return fits[0] + fits[1] + pull + push(local, shared, self.params.alpha)


def subspace(context: Tensor, rho: float, full: bool = False) -> Tensor:
    """Projectors (K, d_t, d_t) on the right singular vectors of (K, m, d_t) but the strongest m (1 - rho).

    The vectors are those of the thin decomposition, which span the context's rows, or of the full one, which span all.
    """
    right: Tensor
    _, _, right = torch.linalg.svd(context, full_matrices=False)
    cut = math.floor(context.shape[1] * (1 - rho) + 1e-9)  # 5 * (1 - 0.8) is just below 1
    strong, weak = right[:, :cut], right[:, cut:]
    if full:  # all but the strong ones: no vector outside the rows is needed, nor has a gradient
        return torch.eye(context.shape[-1], dtype=context.dtype, device=context.device) - strong.mT @ strong
    return weak.mT @ weak


def push(local: Tensor, shared: Tensor, alpha: float) -> Tensor:
    """How far classes are from being ``alpha`` apart, on average, (K,)."""
    distance = (local - shared).square().sum(-1).clamp(min=1e-12).sqrt()  # its gradient at 0 is 0, not NaN
    return (alpha - distance).clamp(min=0).mean(-1)
