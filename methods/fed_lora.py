"""Federated LoRA under one server: FedIT, FFA-LoRA, FlexLoRA and LoRA-FAIR differ in what the server makes of uploads.

Clients train W + (alpha / r) B A. With weights p_k, the update that averaging should give is D = sum_k p_k B_k A_k, but
the product of the averaged factors is another one. FFA-LoRA avoids the difference, FlexLoRA sends the best rank-r
approximation of D, LoRA-FAIR corrects the averaged B.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.fields import option
from fedprompt.core.rng import torch_rng
from fedprompt.methods._contract import State, weighted_mean
from fedprompt.methods._low_rank import LowRank, LowRankParams


class FedIT(LowRank):
    """Shared: both factors, averaged one by one; biased."""

    name = "fedit"
    title = "FedIT"
    order = 91
    paper = "Zhang et al., Towards Building the Federated GPT: Federated Instruction Tuning (ICASSP 2024)"
    payload_formula = "4*L*r*d each way"


class FFALora(LowRank):
    """Shared: B. All clients hold one fixed draw of A, a seed's worth of data, so that averaging is exact."""

    name = "ffa-lora"
    title = "FFA-LoRA"
    order = 91
    paper = "Sun et al., Improving LoRA in Privacy-preserving Federated Learning (ICLR 2024)"
    payload_formula = "2*L*r*d each way"

    def init_prompts(self, rng: torch.Generator) -> State:
        return {"up": self.factors(rng)["up"]}

    def init_personal(self, rng: torch.Generator, client: int) -> State:
        return {**super().init_personal(rng, client), "down": self.factors(rng)["down"]}


NOISE = 1e-6  # smaller singular values, relative to the largest, are what rounding leaves of float32
SPARE = 1e-7

# -- FlexLoRA ---------------------------------------------------------------------------------------------------------


def aligned(downs: Tensor, ups: Tensor, towards: Tensor) -> tuple[Tensor, Tensor]:
    """The same products of B (..., d, r) and A (..., r, d), with A's rows orthonormal and nearest to ``towards``.

    The freedom that a product leaves to its factors is spent on continuity: a rotation between them changes neither the
    function nor what a step of SGD makes of it, but numbers that agree keep agreeing.
    """
    left, sizes, right = torch.linalg.svd(downs, full_matrices=False)
    ups = (ups @ left) * sizes[..., None, :]
    turn, _, back = torch.linalg.svd(right @ towards.mT, full_matrices=False)
    rotation = turn @ back  # of orthogonal Procrustes
    return rotation.mT @ right, ups @ rotation


def best_rank(downs: Tensor, ups: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Factors of the best rank-r approximation of sum_k p_k B_k A_k.

    A come stacked as (K, ..., r, d), B as (K, ..., d, r). The d x d sum is never formed: both stacks of factors are
    decomposed, and the small matrix between them.
    """
    rank, width = downs.shape[-2:]
    shares = weights.to(ups).view(-1, *[1] * (ups.dim() - 1))
    columns, small_up = torch.linalg.qr(torch.cat([*(shares * ups)], dim=-1))  # of (..., d, K r)
    rows, small_down = torch.linalg.qr(torch.cat([*downs], dim=-2).mT)
    left, sizes, right = torch.linalg.svd(small_up @ small_down.mT, full_matrices=False)
    certain = (sizes[..., :rank] > NOISE * sizes[..., :1])[..., None]
    right, up = certain * (right[..., :rank, :] @ rows.mT), columns @ (left * sizes[..., None, :])[..., :rank]
    # Clients that saw few images leave fewer than r directions: the others come from the mean A, or from a fixed draw.
    fixed = torch.randn(rank, width, generator=torch_rng(0, "init", "fed_lora"), dtype=torch.float64).to(right)
    towards = weighted_mean(downs, weights) + SPARE * fixed
    spare = towards - towards @ right.mT @ right
    largest = 2 * torch.linalg.matrix_norm(spare)[..., None, None] + 1
    basis = torch.linalg.svd(torch.cat([largest * right, spare], dim=-2), full_matrices=False)[2][..., :rank, :]
    return aligned(basis, up @ (right @ basis.mT), towards)


class FlexLora(LowRank):
    """Shared: both factors; the server decomposes the average of their products."""

    name = "flexlora"
    title = "FlexLoRA"
    order = 91
    paper = "Bai et al., Federated Fine-tuning of LLMs under Heterogeneous Tasks and Client Resources (NeurIPS 2024)"
    payload_formula = "4*L*r*d each way"

    def upload(self, theta: State, received: State) -> State:
        """The trained product, in the factors of its kind that equal uploads would get from the server."""
        down, up = theta["down"].double(), theta["up"].double()
        down, up = aligned(down, up, down)
        return {**super().upload(theta, received), "down": down.to(theta["down"]), "up": up.to(theta["up"])}

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        mean = super().aggregate(server, uploads, weights, clients)
        down, up = best_rank(uploads["down"].double(), uploads["up"].double(), weights)
        return {**mean, "down": down.to(mean["down"]), "up": up.to(mean["up"])}


# -- LoRA-FAIR --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FairParams(LowRankParams):
    penalty: float = option(0.01, "lambda, which keeps the corrected B near the mean", low=0, paper="0.01")
    measure: str = option(
        "l2",
        "distance of the sent update from the averaged one: squared, solved exactly, or 1 - cosine, by descent",
        choices=("l2", "cosine"),
        paper="cosine",
    )
    steps: int = option(1000, "steps of the descent", low=0, paper="1000")
    step_size: float = option(0.01, "their size", low=0, paper="0.01")


def closest(missing: Tensor, down: Tensor, penalty: float) -> Tensor:
    """argmin over dB of |missing - dB A|^2 + lambda |dB|^2, from ``missing`` = (D - mean(B) A) A^T and A = ``down``."""
    gram = down @ down.mT
    regularised = gram + penalty * torch.eye(len(gram[0, 0]), dtype=gram.dtype, device=gram.device)
    change: Tensor = torch.linalg.solve(regularised, missing, left=False)
    return change


def by_descent(target: Tensor, down: Tensor, up: Tensor, penalty: float, steps: int, size: float) -> Tensor:
    """Gradient descent from 0 on 1 - cos(D, (mean(B) + dB) A) + lambda |dB|^2, with D = ``target``."""
    change = torch.zeros_like(up, requires_grad=True)
    with torch.enable_grad():
        for _ in range(steps):
            cosine = F.cosine_similarity(((up + change) @ down).flatten(2), target.flatten(2), dim=2)
            loss = (1 - cosine).sum() + penalty * change.square().sum()
            change = (change - size * torch.autograd.grad(loss, change)[0]).detach().requires_grad_()
    return change.detach()


class LoraFair(LowRank):
    """Shared: both factors, averaged; then B is corrected so that the product comes nearer to the averaged one."""

    name = "lora-fair"
    title = "LoRA-FAIR"
    order = 91
    paper = "Bian et al., LoRA-FAIR: Federated LoRA Fine-Tuning with Aggregation and Initialization (ICCV 2025)"
    payload_formula = "4*L*r*d each way"
    Params: ClassVar[type] = FairParams

    def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:
        mean, params = super().aggregate(server, uploads, weights, clients), self.params
        downs, ups = uploads["down"].double(), uploads["up"].double()
        down, up = weighted_mean(downs, weights), weighted_mean(ups, weights)
        if params.measure == "l2":
            # (D - mean(B) mean(A)) mean(A)^T = sum_k p_k (B_k - mean(B)) A_k mean(A)^T: no d x d matrix, 0 if all agree
            missing = weighted_mean((ups - up) @ (downs @ down.mT), weights)
            change = closest(missing, down, params.penalty)
        else:
            target = weighted_mean(ups @ downs, weights)
            change = by_descent(target, down, up, params.penalty, params.steps, params.step_size)
        return {**mean, "up": (up + change).to(mean["up"])}
