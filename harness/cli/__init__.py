"""The command line: one module per command, with `add(commands)` and the function that does it.

Only that function imports heavy libraries, so that help and answers to mistyped arguments come at once.
"""

import argparse
import errno
import sys
from collections.abc import Sequence

from fedprompt.core.errors import UserError
from fedprompt.core.interrupts import ctrl_c_apart, one_line
from fedprompt.core.memory import collect_rarely
from fedprompt.harness.cli import (
    bench,
    check,
    datasets,
    methods,
    plan,
    prepare,
    pretrain,
    report,
    run,
    sync,
    tune,
    ui,
)
from fedprompt.harness.cli._parser import Parser

COMMANDS = (run, bench, report, tune, plan, methods, datasets, prepare, check, sync, ui, pretrain)
EXAMPLES = """examples:
  fedprompt methods
  fedprompt run --method fedvpt --dataset glyph-domains --partition domains:m=2
  fedprompt bench embedded --workers 2
  fedprompt report embedded"""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 for success, 1 if some work failed, 2 for bad input, 130 when interrupted."""
    collect_rarely()
    try:
        arguments, unrecognized = build_parser().parse_known_args(argv)
        if unrecognized:  # reported by the command's parser, which suggests its own options
            arguments.parser.error(f"unrecognized arguments: {' '.join(unrecognized)}")
        if arguments.function is None:
            arguments.parser.error("a command is missing")
        with ctrl_c_apart():
            return _run(arguments)
    except UserError as error:
        print(f"fedprompt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fedprompt: interrupted; the same command continues from here", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of a pipe has left
        return 1
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        where = error.filename or "a file"
        print(f"fedprompt: {error.strerror}: {where}; mend that, then run the command again", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace) -> int:
    """The command's exit code. No command ends by an exit of its own: that would be a plugin's, or a library's."""
    try:
        exit_code: int | None = arguments.function(arguments)
    except (SystemExit, GeneratorExit) as error:
        print(f"fedprompt: a plugin or a library tried to end the command ({one_line(error)})", file=sys.stderr)
        return 1
    return exit_code or 0


def build_parser() -> Parser:
    parser = Parser(
        prog="fedprompt",
        allow_abbrev=False,
        description="Benchmark suite for personalised federated learning by prompt tuning.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    parser.set_defaults(function=None, parser=parser)
    for command in COMMANDS:
        command.add(commands)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"fedprompt {version('fedprompt-bench')}")
        parser.exit()
