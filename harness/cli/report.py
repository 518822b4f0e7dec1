"""`fedprompt report`: tables and figures of a suite."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fedprompt.core.errors import UserError
from fedprompt.harness.cli import _options as options
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands


EXAMPLES = ("report embedded", "report embedded --against results/reference/embedded")


def add(commands: "Commands") -> None:
    parser = add_command(commands, "report", report, "tables of a suite from what MLflow holds", EXAMPLES)
    options.add_suite(parser)
    parser.add_argument("--weights", help="the weights file the suite was run with, if it was one of yours")
    parser.add_argument("--untuned", action="store_true", help="report the runs without tuned values")
    parser.add_argument(
        "--accept-code", action="store_true", help="also show cells that were computed by other code than the present"
    )
    parser.add_argument("--against", type=Path, metavar="DIR", help="say which numbers differ from a published run's")
    parser.add_argument("--publish", type=Path, metavar="DIR", help="also write report and records, small, to DIR")
    options.add_out(parser)
    options.add_plugins(parser)
    options.add_tracking(parser)


def report(args: Namespace) -> None:
    from rich.console import Console

    from fedprompt.harness.report.against import against
    from fedprompt.harness.report.reference import publish, verify
    from fedprompt.harness.report.write import write_report

    suite = options.selected_suite(args)
    page = write_report(suite, options.tracking_uri(args), args.out, Console(), args.accept_code)
    if args.publish:
        missing = publish(suite, args.out, args.publish)
        print(" ".join(filter(None, (f"Published: {args.publish}.", missing))))
    if args.against:
        verify(args.against)
        verdict = against(page.parent, args.against)
        print("\n".join(verdict.lines))
        if not verdict.same:
            raise UserError(f"the runs differ from {args.against} by more than their seeds do.")
