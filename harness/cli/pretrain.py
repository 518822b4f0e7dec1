"""`fedprompt pretrain`: an embedded backbone, trained from scratch."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedprompt.core.errors import UserError
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands

EXAMPLES = ("pretrain --out m.safetensors", "pretrain micro-clip --out c.safetensors")


def add(commands: "Commands") -> None:
    parser = add_command(commands, "pretrain", pretrain, "train an embedded backbone from scratch", EXAMPLES)
    parser.add_argument(
        "backbone", nargs="?", default="micro-vit", choices=("micro-vit", "micro-clip"), help="micro-vit is the default"
    )
    parser.add_argument("--out", type=Path, required=True, help="where to write the weights (.safetensors)")
    parser.add_argument("--steps", type=int, help="fewer steps, to try it out")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default 0)")


def pretrain(args: Namespace) -> None:
    if args.out.suffix != ".safetensors":
        raise UserError(f"--out {str(args.out)!r} must end in .safetensors.")
    from rich.console import Console
    from rich.table import Table

    from fedprompt.backbones import pretraining, pretraining_clip

    train: Callable[..., dict[str, Any]] = pretraining.pretrain
    if args.backbone == "micro-clip":
        train = pretraining_clip.pretrain_clip
    options = {} if args.steps is None else {"steps": args.steps}
    measurements = train(args.out, seed=args.seed, **options)
    table = Table("measured", "value")
    for name, value in measurements.items():
        table.add_row(name, str(value))
    Console().print(table)
