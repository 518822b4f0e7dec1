"""The policy of the head: who owns it while clients train, and whether they fine-tune it before they are evaluated.

A *training* is what a cell does; a *reading* is one way to evaluate it. `global` and `global_then_ft` are two readings
of one training. Methods without a head have the policy `none`, and `none_then_ft` where each client fine-tunes a copy
of what it trains (its prompt).
"""

from typing import Any

from fedprompt.harness.federation.protocol import Protocol

FINETUNED = "_then_ft"
POLICY_NAMES = {
    "local": "local head",
    "global": "global head",
    "global_then_ft": "global head, fine-tuned",
    "none": "no head",
    "none_then_ft": "no head, prompt fine-tuned",
}
POLICIES = tuple(POLICY_NAMES)
PAPER = "paper"  # each method's own choice, `Method.paper_policy`


def head_owner(policy: str) -> str:
    """Who owns the head in trainings that are read under ``policy``: `local`, `global`, or `none` if there is none."""
    return policy.removesuffix(FINETUNED)


def is_finetuned(policy: str) -> bool:
    """Whether clients fine-tune a copy before they are evaluated."""
    return policy.endswith(FINETUNED)


def metric_suffix(policy: str) -> str:
    """What the names of a cell's metrics end in for this reading."""
    return "_ft" if is_finetuned(policy) else ""


def applicable(paper_policy: str) -> tuple[str, ...]:
    """The policies that a method can have, by that of its paper: a method has a head or has none."""
    headless = head_owner(paper_policy) == "none"
    return tuple(policy for policy in POLICIES if (head_owner(policy) == "none") == headless)


def policy_protocol(policy: str, epochs: int) -> dict[str, Any]:
    """Fields of the protocol for trainings that are read under ``policy``; ``epochs`` are those of fine-tuning."""
    return {"head": head_owner(policy), "finetune_epochs": epochs if is_finetuned(policy) else 0}


def readings(protocol: Protocol) -> tuple[str, ...]:
    """The policies under which every evaluation of a training counts; the first needs no fine-tuning."""
    return (protocol.head, protocol.head + FINETUNED) if protocol.finetune_epochs else (protocol.head,)
