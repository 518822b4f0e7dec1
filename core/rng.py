"""Every random draw of the suite comes from a generator made from a key; there is no global stream.

A key is (seed, purpose, *rest), for example ``(0, "batches", round, client)``. Two methods that ask with the
same key get the same draws, and no draw depends on how many were made before it elsewhere.
"""

import hashlib
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

Purpose = Literal["partition", "participation", "init", "batches", "noise", "evaluation", "data", "pretrain"]


def derive(seed: int, purpose: Purpose, *rest: int | str) -> int:
    """A 63-bit seed for the key; stable across processes, platforms and PYTHONHASHSEED."""
    text = "/".join(str(part) for part in (seed, purpose, *rest))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def torch_rng(seed: int, purpose: Purpose, *rest: int | str) -> "torch.Generator":
    """A CPU generator: draws are made on the CPU and moved, so that a GPU run sees the same numbers."""
    import torch  # here, because data sets and the command line use this module without torch

    return torch.Generator().manual_seed(derive(seed, purpose, *rest))


def numpy_rng(seed: int, purpose: Purpose, *rest: int | str) -> np.random.Generator:
    return np.random.default_rng(derive(seed, purpose, *rest))
