"""Who owns the head of a training, and in which readings a suite shows it: all that tuning knows of policies.

Protocols, planned entries and methods without policies are those of the papers, with one reading.
"""

from collections.abc import Iterable
from typing import Any

from fedprompt.harness.cells.cell import Cell
from fedprompt.harness.cells.suite import Planned
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.methods import registry

FIELDS = ("head", "finetune_epochs")  # of the protocol


def head_of(cell: Cell) -> str:
    """The owner of the head: `local` or `global`."""
    return str(getattr(cell.protocol, "head", "paper"))


def head_protocol(cell: Cell) -> dict[str, Any]:
    """The values by which a protocol trains and reads the head as ``cell`` does."""
    return {name: getattr(cell.protocol, name) for name in FIELDS if hasattr(cell.protocol, name)}


def readings(cell: Cell, entries: Iterable[Planned]) -> tuple[str, ...]:
    """The keys of the summary of ``cell`` that hold its validation average under the policies of ``entries``."""
    if not getattr(cell.protocol, "finetune_epochs", 0):
        return ("average",)
    paper_policy = getattr(registry().get(cell.method), "paper_policy", "")
    policies = {getattr(entry, "policy", "paper") for entry in entries}
    policies = {paper_policy if policy == "paper" else policy for policy in policies}
    return tuple(sorted({"average_ft" if policy == "global_then_ft" else "average" for policy in policies}))


def suite_key(cell_key: tuple[str, ...]) -> Any:
    """The key of `Suite.tuned`, which has the head if protocols have one."""
    return cell_key if hasattr(Protocol, "head") else cell_key[:3]
