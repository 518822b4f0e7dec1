"""The command line. Each command is a module with `add(subparsers)`; heavy libraries are imported when one runs."""

import sys
from collections.abc import Sequence

from fedprompt.harness.cli._parser import build_parser
from fedprompt.harness.core.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 for success, 1 where some work failed, 2 for bad input, 130 when interrupted."""
    try:
        arguments = build_parser().parse_args(argv)
        return int(arguments.run(arguments) or 0)
    except UserError as error:
        print(f"fedprompt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedprompt: interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has left
        return 1
