"""Several kinds of deep prompts side by side, each with its own length, depth and source."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedprompt.backbones.backbone import Edit, Prompted


class Kind(NamedTuple):
    """``length`` rows that ``rows`` renews before each of the first ``depth`` blocks."""

    length: int
    depth: int
    rows: Callable[[int, Tensor], Tensor]  # block, its CLS and patch tokens -> (n, length, d)


def deep_rows(kinds: Sequence[Kind], after_depth: str) -> Edit:
    """Rows after CLS in the order of ``kinds``; after its last block a kind's rows propagate or are dropped."""
    propagate = after_depth == "propagate"

    def edit(block: int, tokens: Tensor) -> Tensor | Prompted:
        lengths = [kind.length if propagate and block >= kind.depth else 0 for kind in kinds]
        cls, *staying, patches = torch.split(tokens, [1, *lengths, tokens.shape[1] - 1 - sum(lengths)], dim=1)
        unprompted = torch.cat([cls, patches], dim=1) if any(lengths) else tokens
        ending = []
        for place, kind in enumerate(kinds):
            if block < kind.depth:
                rows = kind.rows(block, unprompted)
                if propagate and block == kind.depth - 1:
                    staying[place] = rows
                else:
                    ending.append(rows)
        if any(rows.shape[1] for rows in staying):
            tokens = torch.cat([cls, *staying, patches], dim=1)
        return Prompted(tokens, torch.cat(ending, dim=1)) if ending else tokens

    return edit
