"""FedOTP: a shared and a private context; optimal transport decides which patches of an image each of them explains."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._batch import Batch
from fedprompt.methods._contract import State, Task
from fedprompt.methods._mixins import StopGradients
from fedprompt.methods._text import TextMethod, TextParams


@dataclass(frozen=True)
class FedOTPParams(TextParams):
    mass: float = option(0.8, "mass gamma of a plan; at 1 every patch is used in full", low=0, high=1, paper="0.8")
    eps: float = option(0.1, "weight of the plan's entropy", low=0, paper="0.1 (CIFAR), 0.01 (few shots)")
    sweeps: int = option(100, "Sinkhorn sweeps at most", low=1, paper="100")
    tolerance: float = option(1e-3, "a plan is done when a sweep changes its factors by less", low=0, paper="0.001")
    stop: str = option(
        "plan",
        "who stops together: nobody, each plan by the logarithms of its factors; or a client's whole batch by the "
        "factors themselves, as in the public code",
        choices=("plan", "batch"),
        paper="batch in the code",
    )


class FedOTP(TextMethod, StopGradients):
    """Shared: one context. Private: another. A transport plan per image and class weighs what they match."""

    name = "fedotp"
    title = "FedOTP"
    order = 250
    paper = "Li et al., Global and Local Prompts Cooperation via Optimal Transport for Federated Learning (CVPR 2024)"
    payload_formula = "m*d_t each way"
    needs = frozenset({"text", "spatial tokens"})
    Params = FedOTPParams
    stop_gradients: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("context", "own"), "the plan is a constant of the step"
    )

    def __init__(self, params: FedOTPParams, backbone: FrozenCLIP, task: Task) -> None:
        super().__init__(params, backbone, task)
        for name in ("mass", "eps"):
            if not getattr(params, name):
                raise UserError(f"fedotp: {name} = 0 leaves no transport; give a positive number.")

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        return {"own": self.first_context(rng)}

    def class_features(self, theta: State) -> Tensor:
        """Features under the shared and under the private context, (K, 2, C, d)."""
        both = torch.stack([theta["context"], theta["own"]], dim=1)
        return torch.unflatten(self.encode(both.flatten(0, 1)), 0, (-1, 2))

    def logits(self, theta: State, batch: Batch) -> Tensor:
        patches = batch.pad(batch.patches)  # (K, B, M, d)
        similarity = torch.einsum("kbpd,kjcd->kbcpj", patches, self.current_classes(theta, batch))
        params = self.params
        together = batch.mask if params.stop == "batch" else None
        plan = transport(similarity, params.mass, params.eps, params.sweeps, params.tolerance, together)
        return self.backbone.logit_scale * (plan * similarity).sum((-2, -1))


@torch.no_grad()
def transport(
    similarity: Tensor,
    mass: float,
    eps: float,
    sweeps: int = 100,
    tolerance: float = 1e-3,
    together: Tensor | None = None,
) -> Tensor:
    """Entropic plans (..., M, k) for similarities of the same shape: each column receives ``mass`` / k, and no row
    gives more than 1/M.

    Sweeps over the logarithms of both factors, which neither underflow nor divide by zero. Each plan stops by itself:
    it does not depend on its neighbours in the batch. With ``together``, (K, B) bool, all plans (K, B, C, M, k) of a
    client's real images stop when their factors change by less than the tolerance on average, as in the public code.
    """
    rows, columns = similarity.shape[-2:]
    # (k, M, plans): plans are many and sums over anything else are short, so all sums add long rows
    kernel = ((similarity.reshape(-1, rows, columns) - 1) / eps).permute(2, 1, 0).contiguous()
    capacity, demand = -math.log(rows), math.log(mass / columns)

    def row_factors(kernel: Tensor, column: Tensor) -> Tensor:
        return (capacity - (kernel + column).logsumexp(0, keepdim=True)).clamp(max=0)

    def column_factors(kernel: Tensor, row: Tensor) -> Tensor:
        return demand - (kernel + row).logsumexp(1, keepdim=True)

    def is_moving(old: Tensor, new: Tensor) -> Tensor:
        if together is None:
            return (new - old).abs().mean((0, 1)) >= tolerance
        client = torch.arange(kernel.shape[-1], device=kernel.device) // similarity.shape[1:3].numel()
        real = together.to(kernel.dtype)[..., None].expand(similarity.shape[:3]).flatten()
        change = torch.stack([real * (new.exp() - old.exp()).abs().mean((0, 1)), real])
        total, count = change.new_zeros(2, len(together)).index_add_(1, client, change)
        still: Tensor = total / count.clamp(min=1) >= tolerance
        return still[client]

    column = torch.zeros_like(kernel[:, :1])
    for _ in range(sweeps if together is None else sweeps - 1):  # one more follows, which theirs counts
        swept = column_factors(kernel, row_factors(kernel, column))
        if kernel.is_meta:
            break
        moving = is_moving(column, swept)
        column = torch.where(moving, swept, column)  # a plan that has stopped is at rest in later sweeps, too
        if not moving.any():
            break
    row = row_factors(kernel, column)
    plan = (kernel + row + column_factors(kernel, row)).exp()
    return plan.permute(2, 1, 0).reshape(similarity.shape)
