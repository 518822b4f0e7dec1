"""`fedprompt tune`: searches for learning rates."""

from argparse import Namespace
from typing import TYPE_CHECKING

from fedprompt.harness.cli import _options as options
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands

EXAMPLES = ("tune embedded", "tune embedded --methods fedvpt,pfedpg --sampler tpe --trials 20")


def add(commands: "Commands") -> None:
    parser = add_command(commands, "tune", tune, "choose learning rates on held-out data", EXAMPLES)
    options.add_suite(parser)
    parser.add_argument("--methods", help="only these, separated by commas")
    parser.add_argument("--sampler", default="grid", choices=("grid", "tpe"), help="the methods' own grids, or TPE")
    parser.add_argument("--trials", type=int, help="budget of each study (default: the suite's)")
    parser.add_argument("--storage", help="Optuna's database (default: optuna.db in the results folder)")
    options.add_workers(parser)
    options.add_site(parser)
    options.add_tracking(parser)


def tune(args: Namespace) -> int:
    from fedprompt.harness.cli._tune import tune as tune_suite

    return tune_suite(args)
