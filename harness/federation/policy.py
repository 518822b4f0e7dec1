"""The policy of the head: who owns it while clients train, and whether they fine-tune it before they are evaluated.

A *training* is what a cell does; a *reading* is one way to evaluate it. `global` and `global_then_ft` are two readings
of one training.
"""

from typing import Any

from fedprompt.harness.federation.protocol import Protocol

POLICIES = ("local", "global", "global_then_ft")
PAPER = "paper"  # each method's own choice, `Method.paper_policy`


def head_owner(policy: str) -> str:
    """Who owns the head in trainings that are read under ``policy``: `local` or `global`."""
    return "local" if policy == "local" else "global"


def policy_protocol(policy: str, epochs: int) -> dict[str, Any]:
    """Fields of the protocol for trainings that are read under ``policy``; ``epochs`` are those of fine-tuning."""
    return {"head": head_owner(policy), "finetune_epochs": epochs if policy == "global_then_ft" else 0}


def readings(protocol: Protocol) -> tuple[str, ...]:
    """The policies under which every evaluation of a training counts; the first needs no fine-tuning."""
    return (protocol.head, "global_then_ft") if protocol.finetune_epochs else (protocol.head,)
