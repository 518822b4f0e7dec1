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
                console.print(f"  {name:<{width}}  [bold]{method.title}[/]; a client sends {method.payload_formula}")
        for name, alias in ALIASES.items():
            if ("text" in registry().get(name).needs) == with_text:
                console.print(f"  {name:<{width}}  [bold]{alias.title}[/]; {alias.method} with --policy {alias.policy}")
    console.print("\n'fedprompt methods NAME' shows a method's state, payload and parameters.")


def _describe(method: "type[Method]", console: "Console") -> None:
    """Meaning, state, payload and parameters."""
    from fedprompt.core.fields import describe
    from fedprompt.harness.federation.policy import applicable

    server, personal = _state(method)
    policies = applicable(method.paper_policy)
    console.print(f"[bold]{method.title}[/] ({method.name})")
    console.print(inspect.getdoc(inspect.getmodule(method)) or "")
    console.print(f"\npaper:    {method.paper}")
    console.print(f"head:     {method.paper_policy} in the paper; --policy chooses of {', '.join(policies)}")
    console.print(f"needs:    {', '.join(sorted(method.needs))}")
    console.print(f"server:   {server}")
    console.print(f"personal: {personal}")
    console.print(f"payload:  {method.payload_formula} (floats per client and round)\n")
    for row in describe(method.Params):
        console.print(f"  [bold]{row['name']} = {row['default']}[/]  {row['help']}")
        notes = {"allowed": row["allowed"], "paper": row["paper"], "tuning grid": row["grid"]}
        console.print("      " + "; ".join(f"{name}: {note}" for name, note in notes.items() if note))


def _state(method: "type[Method]") -> tuple[str, str]:
    """Names and shapes of what the server and a client hold, in the small federation of the conformance suite."""
    from fedprompt.harness.conformance.toy import toy_federation

    federation = toy_federation(method)
    state = federation.start()
    sizes = f"  (at width {federation.method.backbone.width}, {federation.method.task.num_classes} classes)"
    return _shapes(state.server) + sizes, _shapes(federation.personal(state, 0))


def _shapes(tensors: "Mapping[str, Tensor]") -> str:
    return ", ".join(f"{name} {'x'.join(map(str, tensor.shape))}" for name, tensor in tensors.items()) or "nothing"
