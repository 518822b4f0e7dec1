"""`fedprompt bench`: all cells of a suite."""

from argparse import Namespace
from typing import TYPE_CHECKING

from fedprompt.harness.cli import _options as options
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands

EXAMPLES = ("bench smoke", "bench embedded --workers 2", "bench mine.toml --methods fedvpt,fedvpt-d --seeds 0")


def add(commands: "Commands") -> None:
    parser = add_command(commands, "bench", bench, "run all cells of a suite, then report", EXAMPLES)
    options.add_suite(parser)
    parser.add_argument("--executor", default="local", choices=("local", "ray"))
    options.add_workers(parser)
    options.add_selection(parser)
    options.add_untuned(parser)
    options.add_site(parser)
    options.add_tracking(parser)
    parser.add_argument("--restart", action="store_true", help="start every cell of the suite over")


def bench(args: Namespace) -> int:
    """1 if a cell failed. The report is of the whole suite, whichever cells were asked for."""
    from rich.console import Console

    from fedprompt.harness.cli._progress import run_and_record
    from fedprompt.harness.report import write_report

    suite = options.whole_suite(args)
    cells = options.selection(suite, args).cells()
    outcomes = run_and_record(cells, options.make_site(args), args, suite.name, args.workers, args.executor)
    write_report(suite, options.tracking_uri(args), args.out, Console())
    return 1 if any(outcome.error for outcome in outcomes) else 0
