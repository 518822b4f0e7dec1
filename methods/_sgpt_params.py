"""SGPT's parameters, and the blocks that they name."""

from dataclasses import dataclass

from fedprompt.core.errors import UserError
from fedprompt.core.fields import option
from fedprompt.methods._headed import PromptParams


@dataclass(frozen=True)
class SGPTParams(PromptParams):
    length: int = option(1, "shared tokens before the first shared block; each other one gets one", low=1, paper="1")
    groups: int = option(6, "groups G", low=1, paper="20 (CIFAR), 4 (Office)", grid=(6, 20))
    shared_blocks: str = option("auto", "blocks (from 0) with shared tokens, as 0-4 or 0,2,3", paper="0-3 or 0-4")
    group_blocks: str = option("auto", "later blocks with a token of the chosen group", paper="4-6 or 5-6")
    query_blocks: int = option(0, "blocks of the query pass; 0 means all", low=0, paper="6 for domains, else all")
    batch_vote: bool = option(
        False, "in training a batch takes its most frequent choice", paper="true for domains, else false"
    )
    counts: str = option(
        "round",
        "choices of others that a client knows: those of earlier rounds, or also those of the clients that trained "
        "before it in this one, one after the other in drawn order",
        choices=("round", "sequential"),
        paper="sequential in the code",
    )
    live_counts: bool = option(False, "popularity includes the choices of the visit so far", paper="false")
    key_weight: float = option(1.0, "weight of the pull of keys towards their queries", low=0, paper="1")
    key_epochs: int = option(
        6,
        "passes over the images in which keys are pulled; 0 means all of the visit",
        low=0,
        paper="6 (keyepoch = 5, counted from 0)",
    )
    unit_keys: bool = option(
        False, "the first key, too, begins with length 1; the public code leaves it as drawn", paper="false"
    )
    moment_p: float = option(0.5, "share of the old group prompts the server keeps", low=0, high=1, paper="0.5")
    moment_k: float = option(0.0, "the same for keys", low=0, high=1, paper="0.5 (CIFAR), 0 (Office)", grid=(0.0, 0.5))
    bcd_epochs: str = option("E+E", "epochs of the two stages", choices=("E+E", "E/2+E/2"), paper="E+E")

    def prompted_blocks(self, depth: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The blocks with shared and those with group prompts; `auto` are the published places, in proportion."""
        shared, grouped = max(1, round(depth * 5 / 12)), max(1, round(depth * 2 / 12))
        first = named_blocks(self.shared_blocks, range(shared), depth, "shared_blocks")
        later = named_blocks(self.group_blocks, range(shared, shared + grouped), depth, "group_blocks")
        if first[-1] >= later[0]:
            raise UserError(
                f"sgpt: group_blocks begin at {later[0]}, but shared_blocks end at {first[-1]}; "
                "group tokens are pooled with CLS and must be inserted last."
            )
        return first, later


def named_blocks(text: str, auto: range, depth: int, where: str) -> tuple[int, ...]:
    """``0-2,5`` is (0, 1, 2, 5); ``auto`` takes what is given."""
    try:
        ends = [[int(end) for end in part.split("-")] for part in text.split(",")] if text != "auto" else [auto]
        named = sorted({block for end in ends for block in range(end[0], end[-1] + 1)})
    except ValueError:
        named = []
    if not named or named[-1] >= depth:
        raise UserError(f"sgpt: {where} = {text!r} does not name blocks 0 to {depth - 1}; write 0-2, 0,2 or auto.")
    return tuple(named)
