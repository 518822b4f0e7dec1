"""Where the cells of a table depart from what the paper says about its methods: rates, prompts, losses.

Taken from the cells themselves and from `paper` of the methods' parameters, never from what a suite intends.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, fields
from typing import Any, NamedTuple

from fedprompt.datasets import parse_partition
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.suite import Suite
from fedprompt.methods import registry

NAMES = {"length": "prompt length", "lr": "learning rate", "head_lr": "learning rate of the head"}
UNPRINTED = ("momentum", "weight_decay", "batch_size")  # of the protocol: the paper does not give them
TUNED = "tuned"


class MethodDifference(NamedTuple):
    name: str  # of the parameter
    ours: str
    theirs: str


def method_differences(suite: Suite, cell: Cell) -> Iterator[MethodDifference]:
    """Parameters of ``cell`` that are not the paper's, or that the paper tuned and the suite did not."""
    partition = str(parse_partition(cell.partition))
    tuned = suite.tuned.get((cell.method, cell.dataset, partition, cell.protocol.head), {})
    for field in fields(registry().get(cell.method).Params):
        theirs = _printed(field, by_domain=partition.startswith("domain"))
        ours = _text(cell.params.get(field.name, field.default))
        is_same = field.name in tuned if TUNED in theirs else _is_printed(ours, theirs)
        if theirs and not is_same:
            yield MethodDifference(NAMES.get(field.name, field.name), ours, theirs)


def _printed(field: "Field[Any]", by_domain: bool) -> str:
    """What the paper says of such data; rates that have a grid and no printed value were tuned."""
    paper, grid = str(field.metadata.get("paper", "")), field.metadata.get("grid", ())
    for_domains, depends, otherwise = paper.partition(" for domains, else ")
    if depends:
        return for_domains if by_domain else otherwise
    return paper or (TUNED if field.name.endswith("lr") and grid else "")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _is_printed(ours: str, theirs: str) -> bool:
    """Some papers' values depend on the data, as in `20 (CIFAR), 4 (Office)`: any of them will do. 0 may mean all."""
    words = theirs.lower().replace("(", " ").replace(")", " ").replace(",", " ").split()
    return ours in words or (ours == "0" and theirs == "all")


def differences_table(suite: Suite) -> str:
    """All of a suite's, in Markdown, as docs/paper-differences.md shows them: one row per method and parameter."""
    values: dict[tuple[str, str, str], list[str]] = {}
    for entry in suite.planned():
        if entry.row.key == entry.row.method:  # variants depart on purpose
            for change in method_differences(suite, entry.cell):
                listed = values.setdefault((entry.row.title, change.name, change.theirs), [])
                listed += [change.ours] * (change.ours not in listed)
    lines = [f"| {title} | {name} | {theirs} | {', '.join(ours)} |" for (title, name, theirs), ours in values.items()]
    return "\n".join(["| method | parameter | paper | ours |", "| --- " * 4 + "|", *lines])


def joined(by_title: Iterable[tuple[str, MethodDifference]]) -> str:
    """The differences of several methods and settings as one text: `prompt length 4 (10) of FedVPT, FedVPT-D`."""
    values: dict[tuple[str, str, str], list[str]] = {}
    for title, change in by_title:
        listed = values.setdefault((change.name, change.theirs, title), [])
        listed += [change.ours] * (change.ours not in listed)
    titles: dict[str, list[str]] = {}
    for (name, theirs, title), ours in values.items():
        titles.setdefault(f"{name} {' or '.join(ours)} ({theirs})", []).append(title)
    return "; ".join(f"{text} of {', '.join(names)}" for text, names in titles.items())


def unprinted(protocols: Iterable[Mapping[str, Any]]) -> str:
    """Ours of what the paper does not give."""
    listed = list(protocols)
    values = {name: list(dict.fromkeys(_text(protocol[name]) for protocol in listed)) for name in UNPRINTED}
    return ", ".join(f"{name.replace('_', ' ')} {' or '.join(texts)}" for name, texts in values.items())
