"""`make perf`: speed as ratios from one run and what whole commands take, next to their aims."""

from argparse import ArgumentParser
from itertools import chain
from pathlib import Path

from commands import compare_commands
from rich.console import Console
from rich.table import Table
from speed import compare, save


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="turns of each way, after a warm-up (default 5)")
    parser.add_argument("--out", type=Path, default=Path("results"), help="results folder (default: results)")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error(f"--repeats {args.repeats} is out of range; it must be at least 1")
    table = Table("work; where nothing else is said, a ratio of CPU times", "reached", "aim", "")
    lines = []
    for line in chain(compare_commands(args.out), compare(args.repeats)):
        lines.append(line)
        bound = f"at {'most' if line.at_most else 'least'} {line.aim:g}"
        table.add_row(line.work, f"{line.reached:.2f}", bound, "" if line.holds else "missed")
    console = Console(width=112)
    console.print(table)
    console.print(f"written to {save(lines, args.out / 'perf')}")


if __name__ == "__main__":
    main()
