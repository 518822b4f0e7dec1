"""`fedprompt prepare`: a data set's files, checked or fetched."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands


def add(commands: "Commands") -> None:
    parser = add_command(commands, "prepare", prepare, "check or fetch a data set", ("prepare cifar100 --root data",))
    parser.add_argument("name", help="see 'fedprompt datasets'")
    parser.add_argument("--root", type=Path, help="where its files are or should go (not for folder:PATH)")
    parser.add_argument("--skip-bad", action="store_true", help="leave unreadable images out instead of stopping")


def prepare(args: Namespace) -> int:
    from fedprompt.datasets import prepare as prepare_dataset

    report = prepare_dataset(args.name, args.root, skip_bad=args.skip_bad)
    print(report.format_report())
    return 0 if report.complete else 1
