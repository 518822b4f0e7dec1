"""`fedprompt methods`: what there is, and one method in detail."""

import inspect
import re
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedprompt.core.text import visible
from fedprompt.harness.cli._options import add_plugins, load_plugins
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from torch import Tensor

    from fedprompt.harness.cli._parser import Commands
    from fedprompt.methods import Method


WIDTH = 100  # columns of the table
VENUE = re.compile(r"\(([^(),]*\d{4}[^(),]*)")
PAYLOAD_OF_HEAD = re.compile(r" ?\((?:\+|without) C\*d.*?\)| each way")
EXPLANATION = """
family:  head: a linear head on any ViT; text: class names instead, on a CLIP backbone (micro-clip,
         clip:NAME)
parity:  largest difference from the authors' code, in double precision; equations: no code to
         compare with, so tests of the equations stand in (docs/parity.md)
payload: floats that a client receives and sends in a round, each way unless it says otherwise; a
         global head costs C*d + C more

'fedprompt methods NAME' shows a method's state, parity, payload and parameters."""


def add(commands: "Commands") -> None:
    examples = ("methods", "methods fedvpt")
    parser = add_command(commands, "methods", methods, "list the methods, or show one in detail", examples)
    parser.add_argument("name", nargs="?", help="show this one; without a name, list all")
    add_plugins(parser)


def methods(args: Namespace) -> None:
    from rich.console import Console

    from fedprompt.methods import ALIASES, registry

    load_plugins(args)
    console = Console(highlight=False, soft_wrap=True)
    if args.name is not None:
        _describe(registry().get(args.name), console)
        return
    console.print(_table())
    for alias, meaning in ALIASES.items():
        console.print(f"{alias}: {meaning.title}, that is {meaning.method} with --policy {meaning.policy}")
    console.print(EXPLANATION)


def _table() -> "Table":
    """One row per method, narrow enough for a terminal of 100 columns."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from fedprompt.harness.report.parity import parity_of_methods
    from fedprompt.methods import registry

    table, parity = Table(box=SIMPLE_HEAD, width=WIDTH, pad_edge=False), parity_of_methods()
    for heading in ("method", "family", "paper", "parity", "payload"):
        table.add_column(heading, no_wrap=heading != "payload", overflow="fold")
    for method in sorted(map(registry().get, registry().names()), key=lambda method: "text" in method.needs):
        family = "text" if "text" in method.needs else "head"
        brief = parity[method.name].brief if method.name in parity else "unknown"
        payload = PAYLOAD_OF_HEAD.sub("", method.payload_formula)
        table.add_row(*map(_shown, (method.name, family, venue(method.paper), brief, payload)))
    return table


def venue(paper: str) -> str:
    """Where a method was published, from its citation: what the first brackets with a year say, up to a comma."""
    brackets = VENUE.search(paper)
    return brackets[1] if brackets else ""


def _describe(method: "type[Method]", console: "Console") -> None:
    """Meaning, state, payload and parameters."""
    from fedprompt.core.fields import describe
    from fedprompt.harness.federation.policy import applicable

    server, personal, payload = _state(method)
    policies = applicable(method.paper_policy)
    console.print(f"[bold]{_shown(method.title)}[/] ({_shown(method.name)})")
    console.print(_shown(inspect.getdoc(inspect.getmodule(method)) or ""))
    console.print(f"\npaper:    {_shown(method.paper)}")
    console.print(f"parity:   {_shown(_parity(method))}")
    console.print(f"head:     {method.paper_policy} in the paper; --policy chooses of {', '.join(policies)}")
    console.print(f"needs:    {_shown(', '.join(sorted(method.needs)))}")
    console.print(f"server:   {_shown(server)}")
    console.print(f"personal: {_shown(personal)}")
    console.print(f"payload:  {_shown(_formula(method))}{_shown(payload)}\n")
    for row in describe(method.Params):
        console.print(f"  [bold]{_shown(row['name'])} = {_shown(row['default'])}[/]  {_shown(row['help'])}")
        notes = {"allowed": row["allowed"], "paper": row["paper"], "tuning grid": row["grid"]}
        console.print("      " + _shown("; ".join(f"{name}: {note}" for name, note in notes.items() if note)))


def _shown(text: object) -> str:
    """Without commands to the terminal or to rich: a plugin may say anything of itself."""
    from rich.markup import escape

    return escape(visible(text, keep="\n"))


def _parity(method: "type[Method]") -> str:
    from fedprompt.harness.report.parity import parity_of_methods

    entry = parity_of_methods().get(method.name)
    return entry.line if entry else "unknown: nobody has compared it with its authors' code here"


def _formula(method: "type[Method]") -> str:
    """In symbols, where the method gives it."""
    from fedprompt.methods import HeadedMethod

    if not method.payload_formula:
        return ""
    head = ", and C*d + C with a global head" if issubclass(method, HeadedMethod) else ""
    return f"{method.payload_formula}{head}: "


def _state(method: "type[Method]") -> tuple[str, str, str]:
    """What the server and a client hold, and what is sent, in the small federation of the conformance suite."""
    from fedprompt.harness.conformance.toy import toy_federation
    from fedprompt.harness.federation.payload import traffic

    federation = toy_federation(method)
    state, sent = federation.start(), traffic(federation.method)
    sizes = f"  (at width {federation.method.backbone.width}, {federation.method.task.num_classes} classes)"
    payload = f"{sent.down.floats} floats down, {sent.up.floats} up, per client and round{sizes}"
    return _shapes(state.server) + sizes, _shapes(federation.personal(state, 0)), payload


def _shapes(tensors: "Mapping[str, Tensor]") -> str:
    return ", ".join(f"{name} {'x'.join(map(str, tensor.shape))}" for name, tensor in tensors.items()) or "nothing"
