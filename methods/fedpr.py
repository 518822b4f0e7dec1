"""FedPR: FedVPT whose prompt moves only in the null space of the prompt the server sent. Shallow and deep."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedprompt.core.fields import option
from fedprompt.core.rng import torch_rng
from fedprompt.methods._contract import State
from fedprompt.methods._headed import PromptParams
from fedprompt.methods._mixins import Constants, Steps
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.fedvpt_d import DeepParams, FedVPTDeep

PROJECTORS = ("gram_full", "thin", "exact")
RANK_TOLERANCE = 1e-6  # singular values below this share of the largest one count as zero


@dataclass(frozen=True)
class ProjectionParams:
    """Options of the projection, with shallow and deep prompts alike."""

    lr: float = option(0.01, "learning rate of everything that trains", low=0, grid=(0.01, 0.05, 0.1, 0.25))
    projector: str = option(
        "gram_full",
        "directions removed: the first of all d (official), the first of the prompt's T, or all the prompt has",
        choices=PROJECTORS,
        paper="gram_full",
    )
    ratio: float = option(0.8, "share of the directions kept; 1 means FedVPT", low=0, high=1, paper="0.8")
    fro_normalize: bool = option(
        False,
        "divide the projector by its Frobenius norm: steps 25 times shorter at d = 768",
        paper="true",
        grid=(False, True),
    )
    project_first_round: bool = option(False, "project in round 1 too", paper="false")


@dataclass(frozen=True)
class ShallowProjectionParams(ProjectionParams, PromptParams):
    pass


@dataclass(frozen=True)
class DeepProjectionParams(ProjectionParams, DeepParams):
    pass


def removed_directions(prompts: Tensor, projector: str = "gram_full", ratio: float = 0.8) -> Tensor:
    """For every slice of (..., T, d) an orthonormal basis (..., d, r) of what a step loses; Q = I - U U^T.

    The Gram matrix of T rows spans at most T directions, and the official rule removes more. There the others are what
    the rounding of a singular value decomposition leaves; here they are drawn from a fixed key.
    """
    rows, width = prompts.shape[-2:]
    sizes: Tensor
    right: Tensor
    _, sizes, right = torch.linalg.svd(prompts.double(), full_matrices=False)
    certain = (sizes > RANK_TOLERANCE * sizes.amax(-1, keepdim=True))[..., None, :] if rows else sizes[..., None, :]
    if projector == "exact":
        return (right.mT * certain).to(prompts)
    if projector == "thin":
        return (right.mT * certain)[..., : rows - _remaining(ratio, rows)].to(prompts)
    count = width - _remaining(ratio, width)
    fixed = torch.randn(width, width, generator=torch_rng(0, "init", "fedpr"), dtype=torch.float64).to(prompts.device)
    spanned = right.shape[-2]
    head = torch.where(certain.bool(), right.mT, fixed[:, :spanned])
    tail = fixed[:, spanned:].expand(*head.shape[:-1], width - spanned)
    basis: Tensor = torch.linalg.qr(torch.cat([head, tail], dim=-1)[..., :count])[0]
    return basis.to(prompts)


def _remaining(ratio: float, directions: int) -> int:
    return math.ceil(ratio * directions - 1e-9)  # 0.55 * 100 is a little more than 55


def project(step: Tensor, removed: Tensor, fro_normalize: bool = False) -> Tensor:
    """step Q, row by row, without ever forming the d x d matrix Q."""
    projected = step - (step @ removed) @ removed.mT
    if fro_normalize:  # |Q|_F^2 is the trace of a projector: the number of directions kept
        projected = projected / (step.shape[-1] - removed.square().sum((-1, -2), keepdim=True)).sqrt()
    return projected


class FedPRShallow(FedVPT, Constants, Steps):
    """FedVPT with a basis of what steps lose, computed once per visit."""

    name = "fedpr-s"
    title = "FedPR-S"
    order = 40
    paper = "Feng et al., Learning Federated Visual Prompt in Null Space for MRI Reconstruction (CVPR 2023)"
    Params: ClassVar[type] = ShallowProjectionParams

    def begin_visit(self, theta: State, round_: int) -> State:
        if round_ == 1 and not self.params.project_first_round:
            return {}
        return {
            f"removed {name}": removed_directions(tensor, self.params.projector, self.params.ratio)
            for name, tensor in theta.items()
            if not name.startswith("head.")
        }

    def project_step(self, name: str, step: Tensor, start: Mapping[str, Tensor]) -> Tensor:
        removed = start.get(f"removed {name}")
        return step if removed is None else project(step, removed, self.params.fro_normalize)


class FedPRDeep(FedPRShallow, FedVPTDeep):
    """The same for the prompts of every block, each with its own basis."""

    name = "fedpr-d"
    title = "FedPR-D"
    order = 41
    payload_formula = FedVPTDeep.payload_formula
    Params: ClassVar[type] = DeepProjectionParams
