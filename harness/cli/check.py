"""`fedprompt check`: the conformance suite."""

import dataclasses
from argparse import Namespace
from typing import TYPE_CHECKING

from fedprompt.core.errors import unknown
from fedprompt.core.text import visible
from fedprompt.harness.cli._options import add_plugins, load_plugins, split_settings
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands

EXAMPLES = ("check fedvpt", "check mine --plugin mine.py")


def add(commands: "Commands") -> None:
    parser = add_command(commands, "check", check, "run the conformance suite on a method", EXAMPLES)
    parser.add_argument("method", help="see 'fedprompt methods'")
    parser.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter of the method; may be repeated",
    )
    add_plugins(parser)


def check(args: Namespace) -> int:
    """1 if a property does not hold."""
    from rich.console import Console
    from rich.markup import escape

    from fedprompt.harness.conformance import check_method
    from fedprompt.methods import registry

    load_plugins(args)
    method = registry().get(args.method)
    params, protocol = split_settings(args.method, args.settings)
    for key in protocol:
        raise unknown(f"parameter of {args.method}", key, [field.name for field in dataclasses.fields(method.Params)])
    console, failures = Console(highlight=False), 0
    for result in check_method(method, params):
        failures += not result.ok
        mark = "[green]ok  [/]" if result.ok else "[red]FAIL[/]"
        console.print(
            f"{mark} {result.name}" + ("" if result.ok else f": {escape(visible(result.reason))}"), soft_wrap=True
        )
    console.print(f"{args.method}: " + (f"{failures} properties do not hold" if failures else "every property holds"))
    return 1 if failures else 0
