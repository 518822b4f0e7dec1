"""How commands are declared, and how mistakes in them are answered."""

import argparse
import difflib
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from fedprompt.core.errors import UserError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["Parser"]  # what `add_subparsers` returns


class Parser(argparse.ArgumentParser):
    """argparse whose error messages are one line and suggest the nearest right word."""

    def error(self, message: str) -> NoReturn:
        suggestion = ""
        if message.startswith("unrecognized") or "invalid choice" in message:
            known = self._words()
            words = re.findall(r"[\w-]+", message)
            nearest = next((near for word in words if (near := _nearest(word, known))), "")
            suggestion = f" Did you mean {nearest}?" if nearest else ""
        raise UserError(f"{message}.{suggestion} See '{self.prog} --help'.")

    def _words(self) -> list[str]:
        """Options and, in the main parser, commands."""
        return [*self._option_string_actions, *(word for action in self._actions for word in action.choices or ())]


def _nearest(word: str, known: Sequence[str]) -> str:
    return "" if word in known else next(iter(difflib.get_close_matches(word, known, n=1, cutoff=0.7)), "")


def add_command(
    commands: "Commands",
    name: str,
    function: Callable[[argparse.Namespace], int | None],
    help: str,
    examples: Sequence[str],
) -> Parser:
    """A subcommand; ``function`` gets the parsed arguments and returns an exit code, or None for success."""
    lines = "\n".join(f"  fedprompt {example}" for example in examples)
    parser = commands.add_parser(
        name,
        help=help,
        description=help[0].upper() + help[1:] + ".",
        epilog=f"examples:\n{lines}",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(function=function, parser=parser)
    return parser
