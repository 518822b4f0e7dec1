"""Every random draw of the suite comes from a generator made from a key; there is no global stream.

A key is (seed, purpose, *rest). Two methods that use the same key get the same draws, and no draw depends on how many
were made elsewhere before it::

    order = torch.randperm(size, generator=torch_rng(seed, "batches", round_number, client))
"""

import hashlib
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

Purpose = Literal["partition", "participation", "init", "batches", "noise", "evaluation", "data", "pretrain"]


def derive(seed: int, purpose: Purpose, *rest: int | str) -> int:
    """A 63-bit seed for the key: the same in every process, on every platform, whatever PYTHONHASHSEED is.

    ``rest`` tells apart what is drawn for one purpose: rounds, clients, names.
    """
    text = "/".join(str(part) for part in (seed, purpose, *rest))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def torch_rng(seed: int, purpose: Purpose, *rest: int | str) -> "torch.Generator":
    """A torch generator for the key. Draw on the CPU and move the result, so that a GPU run sees the same numbers."""
    import torch  # here, because data sets and the command line use this module without torch

    return torch.Generator().manual_seed(derive(seed, purpose, *rest))


def numpy_rng(seed: int, purpose: Purpose, *rest: int | str) -> np.random.Generator:
    """A NumPy generator for the key."""
    return np.random.default_rng(derive(seed, purpose, *rest))
