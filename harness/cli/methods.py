"""`fedprompt methods`: what there is, and one method in detail."""

import inspect
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedprompt.harness.cli._options import add_plugins, load_plugins
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from fedprompt.harness.cli._parser import Commands
    from fedprompt.methods import Method


VISION = "With a head, on any ViT:"
TEXT = "\nWith class names instead of a head, on a CLIP backbone (micro-clip, clip:NAME):"


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
    width = max(len(name) for name in (*registry().names(), *ALIASES))
    for heading, with_text in ((VISION, False), (TEXT, True)):
        console.print(heading)
        for name in registry().names():
            method = registry().get(name)
            if ("text" in method.needs) == with_text:
                formula = f"; a client sends {method.payload_formula}" if method.payload_formula else ""
                console.print(f"  {name:<{width}}  [bold]{method.title}[/]{formula}")
        for name, alias in ALIASES.items():
            if ("text" in registry().get(name).needs) == with_text:
                console.print(f"  {name:<{width}}  [bold]{alias.title}[/]; {alias.method} with --policy {alias.policy}")
    console.print("\nFloats per client and round; those with a head send C*d + C more where it is global.")
    console.print("'fedprompt methods NAME' shows a method's state, payload and parameters.")


def _describe(method: "type[Method]", console: "Console") -> None:
    """Meaning, state, payload and parameters."""
    from fedprompt.core.fields import describe
    from fedprompt.harness.federation.policy import applicable

    server, personal, payload = _state(method)
    policies = applicable(method.paper_policy)
    console.print(f"[bold]{method.title}[/] ({method.name})")
    console.print(inspect.getdoc(inspect.getmodule(method)) or "")
    console.print(f"\npaper:    {method.paper}")
    console.print(f"head:     {method.paper_policy} in the paper; --policy chooses of {', '.join(policies)}")
    console.print(f"needs:    {', '.join(sorted(method.needs))}")
    console.print(f"server:   {server}")
    console.print(f"personal: {personal}")
    console.print(f"payload:  {_formula(method)}{payload}\n")
    for row in describe(method.Params):
        console.print(f"  [bold]{row['name']} = {row['default']}[/]  {row['help']}")
        notes = {"allowed": row["allowed"], "paper": row["paper"], "tuning grid": row["grid"]}
        console.print("      " + "; ".join(f"{name}: {note}" for name, note in notes.items() if note))


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
