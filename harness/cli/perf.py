"""`fedprompt perf`: speed, side by side."""

from argparse import Namespace
from typing import TYPE_CHECKING

from fedprompt.harness.cli._parser import add_command
from fedprompt.harness.core.errors import UserError

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands


def add(commands: "Commands") -> None:
    examples = ("perf", "perf --repeats 15")
    parser = add_command(commands, "perf", perf, "compare speeds side by side, in one process", examples)
    parser.add_argument("--repeats", type=int, default=7, help="turns of each way (default 7)")


def perf(args: Namespace) -> None:
    if args.repeats < 1:
        raise UserError(f"--repeats {args.repeats} is out of range; it must be at least 1.")
    from rich.console import Console
    from rich.table import Table

    from fedprompt.harness.planning.speed import compare

    table = Table("work", "way", "median ms", "speed-up")
    for group, way, seconds, ratio in compare(args.repeats):
        table.add_row(group, way, f"{1000 * seconds:.1f}", f"{ratio:.2f}")
    Console().print(table)
