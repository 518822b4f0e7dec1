"""Number formats of a GPU's passes: a switch of the cell, because they change results.

With bf16 the fused attention of torch picks its flash kernel by itself; in full precision it has none.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fedprompt.core.errors import UserError

PRECISIONS = ("fp32", "tf32", "bf16")


def require_precision(name: str, device: torch.device | str) -> None:
    if name != "fp32" and torch.device(device).type == "cpu":
        raise UserError(
            f"precision = {name!r} is for GPUs, and this cell would run on the CPU, where it is slower or means "
            "nothing; use --device cuda or precision=fp32."
        )


@contextmanager
def autocast_as(name: str, device: torch.device | str) -> Iterator[None]:
    """Forward and backward passes in the block use the format ``name``; what was set before comes back after it."""
    if torch.device(device).type == "cpu":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = name != "fp32"
    try:
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=name == "bf16"):
            yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before
