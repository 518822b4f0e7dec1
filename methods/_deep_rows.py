"""Several kinds of deep prompts side by side, each with its own length, depth and source."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedprompt.harness.model.backbone import Edit


class Kind(NamedTuple):
    """``length`` rows that ``rows`` renews before each of the first ``depth`` blocks."""

    length: int
    depth: int
    rows: Callable[[int, Tensor], Tensor]  # block, its CLS and patch tokens -> (n, length, d)


def deep_rows(kinds: Sequence[Kind], after_depth: str) -> Edit:
    """Rows after CLS in the order of ``kinds``; after its last block a kind's rows propagate or are dropped."""
    propagate = after_depth == "propagate"

    def edit(block: int, tokens: Tensor) -> Tensor:
        lengths = [kind.length if block and (propagate or block <= kind.depth) else 0 for kind in kinds]
        cls, *groups, patches = torch.split(tokens, [1, *lengths, tokens.shape[1] - 1 - sum(lengths)], dim=1)
        unprompted = torch.cat([cls, patches], dim=1)
        groups = [
            kind.rows(block, unprompted) if block < kind.depth else old
            for kind, old in zip(kinds, groups, strict=True)
            if propagate or block < kind.depth
        ]
        return torch.cat([cls, *groups, patches], dim=1)

    return edit
