"""`fedprompt bench`: all cells of a suite."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fedprompt.core.errors import UserError
from fedprompt.harness.cli import _options as options
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fedprompt.harness.cli._parser import Commands
    from fedprompt.harness.running.cell import Cell

EXAMPLES = (
    "bench smoke",
    "bench embedded --workers 2",
    "bench mine.toml --methods fedvpt,fedvpt-d --seeds 0",
    "bench cpu-office --resume-from results/reference/cpu-office",
    "bench paper --device cuda:0,cuda:1 --workers 4",
    "bench paper --executor ray --gpus-per-cell 0.25",
    "bench paper --executor slurm --slurm partition=gpu --slurm gres=gpu:1 --slurm time=600",
)


def add(commands: "Commands") -> None:
    parser = add_command(commands, "bench", bench, "run all cells of a suite, then report", EXAMPLES)
    options.add_suite(parser)
    options.add_executor(parser)
    options.add_selection(parser)
    options.add_untuned(parser)
    options.add_environment(parser)
    options.add_tracking(parser)
    parser.add_argument(
        "--resume-from", type=Path, metavar="DIR", help="take finished cells from a published run of the same code"
    )
    parser.add_argument("--restart", action="store_true", help="start every cell of the suite over")
    parser.add_argument(
        "--restart-cell", action="append", default=[], metavar="CELL", help="start one cell over, by its folder's name"
    )


def bench(args: Namespace) -> int:
    """1 if a cell failed. The report is of the whole suite, whichever cells were asked for."""
    from rich.console import Console

    from fedprompt.harness.cli._progress import run_and_record
    from fedprompt.harness.report.reuse import still_holds

    suite = options.whole_suite(args)
    cells = options.selection(suite, args).cells()
    if args.resume_from:
        _restore(args.resume_from, cells, args.out)
    restart = {cell.hash for cell in cells} if args.restart else _named(args.restart_cell, cells, suite.name)
    outcomes = run_and_record(cells, options.make_environment(args), args, restart, suite, args.workers, args.executor)
    shown = still_holds(suite, options.tracking_uri(args), args.out)
    if shown is not None:
        print(shown, end="")
        print(f"Nothing new since then; `fedprompt report {suite.argument}` writes the report again.")
    else:
        from fedprompt.harness.report.write import write_report

        write_report(suite, options.tracking_uri(args), args.out, Console())
    return 1 if any(outcome.error for outcome in outcomes) else 0


def _restore(folder: Path, cells: "Sequence[Cell]", out: Path) -> None:
    from fedprompt.harness.report.reference import restore

    taken, other = restore(folder, cells, out)
    rest = f"; {other} others there are of other code or have other values" if other else ""
    print(f"{taken} finished cells taken from {folder}{rest}", file=sys.stderr)


def _named(names: "Sequence[str]", cells: "Sequence[Cell]", suite: str) -> set[str]:
    """The hashes of the cells that ``names`` begin."""
    hashes = {cell.hash for cell in cells}
    for name in names:
        if not any(hash_.startswith(name) for hash_ in hashes):
            raise UserError(
                f"--restart-cell {name!r} is no cell of suite {suite!r}; cells are named by their folders in "
                "`runs` of the results folder, and listed in cells.csv of the report."
            )
    return {hash_ for hash_ in hashes if hash_.startswith(tuple(names))}
