"""`fedprompt report`: tables and figures of a suite."""

from argparse import Namespace
from typing import TYPE_CHECKING

from fedprompt.harness.cli import _options as options
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands


def add(commands: "Commands") -> None:
    parser = add_command(commands, "report", report, "tables of a suite from what MLflow holds", ("report embedded",))
    options.add_suite(parser)
    parser.add_argument("--weights", help="the weights file the suite was run with, if it was one of yours")
    parser.add_argument("--untuned", action="store_true", help="report the runs without tuned values")
    parser.add_argument(
        "--accept-code", action="store_true", help="also show cells that were computed by other code than the present"
    )
    options.add_out(parser)
    options.add_plugins(parser)
    options.add_tracking(parser)


def report(args: Namespace) -> None:
    from rich.console import Console

    from fedprompt.harness.report import write_report

    write_report(options.selected_suite(args), options.tracking_uri(args), args.out, Console(), args.accept_code)
