"""`fedprompt perf`: speed as ratios from one run and what whole commands take, beside what they should be."""

from argparse import Namespace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from fedprompt.core.errors import UserError
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands


def add(commands: "Commands") -> None:
    examples = ("perf", "perf --repeats 15")
    parser = add_command(commands, "perf", perf, "compare speeds side by side, in one process", examples)
    parser.add_argument("--repeats", type=int, default=5, help="turns of each way, after a warm-up (default 5)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="results folder (default: results)")


def perf(args: Namespace) -> None:
    if args.repeats < 1:
        raise UserError(f"--repeats {args.repeats} is out of range; it must be at least 1.")
    from rich.console import Console
    from rich.table import Table

    from fedprompt.harness.planning.commands import compare_commands
    from fedprompt.harness.planning.speed import compare, save

    table = Table("work; where nothing else is said, a ratio of CPU times", "reached", "aim", "")
    lines = []
    for line in chain(compare_commands(args.out), compare(args.repeats)):
        lines.append(line)
        bound = f"at {'most' if line.at_most else 'least'} {line.aim:g}"
        table.add_row(line.work, f"{line.reached:.2f}", bound, "" if line.holds else "missed")
    console = Console(width=112)
    console.print(table)
    console.print(f"written to {save(lines, args.out / 'perf')}")
