"""`fedprompt prepare`: a data set's files, checked or fetched."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fedprompt.core.errors import UserError
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands

EXAMPLES = ("prepare cifar100 --root data", "prepare folder:~/pictures --name pictures")


def add(commands: "Commands") -> None:
    parser = add_command(commands, "prepare", prepare, "check or fetch a data set", EXAMPLES)
    parser.add_argument("name", help="see 'fedprompt datasets'")
    parser.add_argument("--root", type=Path, help="where its files are or should go (not for folder:PATH)")
    parser.add_argument(
        "--name", dest="short_name", help="what to call your own images from now on, instead of folder:PATH"
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave unreadable images out instead of stopping")


def prepare(args: Namespace) -> int:
    from fedprompt.datasets import name_folder
    from fedprompt.datasets import prepare as prepare_dataset

    if args.short_name is not None:
        if not args.name.startswith("folder:"):
            raise UserError(f"--name is for your own images (folder:PATH); {args.name} has a name.")
        name_folder(args.short_name, args.name)
    report = prepare_dataset(args.short_name or args.name, args.root, skip_bad=args.skip_bad)
    print(report.format_report())
    return 0 if report.complete else 1
