"""`fedprompt pretrain`: the embedded backbone, trained anew."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fedprompt.harness.cli._parser import add_command
from fedprompt.harness.core.errors import UserError

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands

EXAMPLES = ("pretrain --out m.safetensors",)


def add(commands: "Commands") -> None:
    parser = add_command(commands, "pretrain", pretrain, "train the embedded backbone anew", EXAMPLES)
    parser.add_argument("--out", type=Path, required=True, help="where to write the weights (.safetensors)")
    parser.add_argument("--steps", type=int, help="fewer steps, to try it out")
    parser.add_argument("--seed", type=int, default=0)


def pretrain(args: Namespace) -> None:
    if args.out.suffix != ".safetensors":
        raise UserError(f"--out {str(args.out)!r} must end in .safetensors.")
    from rich.console import Console
    from rich.table import Table

    from fedprompt.harness.model.pretraining import pretrain as train

    options = {} if args.steps is None else {"steps": args.steps}
    measurements = train(args.out, seed=args.seed, **options)
    table = Table("measured", "value")
    for name, value in measurements.items():
        table.add_row(name, str(value))
    Console().print(table)
