"""`fedprompt run`: one cell."""

import json
from argparse import Namespace
from typing import TYPE_CHECKING

from fedprompt.core.errors import UserError
from fedprompt.harness.cli._options import (
    SET_HELP,
    add_cell_timeout,
    add_environment,
    add_tracking,
    load_plugins,
    make_environment,
    split_settings,
)
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands
    from fedprompt.harness.running.execution import CellOutcome

EXAMPLES = (
    "run --method fedvpt --dataset glyph-domains --partition domains:m=2 --rounds 5",
    "run -m fedvpt-d -d glyph-100 -p classes:s=5,clients=20 --set lr=0.05 --set epochs=2 --seed 1",
    "run -m fedvpt-d -d glyph-domains -p domains:m=6 --policy global_then_ft --rounds 5",
    "run -m promptfl -d glyph-100 -p disjoint:clients=5,novel=half --backbone micro-clip --rounds 5 --set length=4",
    "run -m fedvpt -d cifar100 -p classes:s=10 --data-root data -b vit_tiny_patch16_224 --image-size 128 "
    "--weights vit_tiny.safetensors",
)

HELD_OUT = {  # numbers of partitions that keep classes or a domain out of training
    "base_average": "Base",
    "novel_average": "Novel",
    "harmonic_mean": "Harmonic Mean",
    "target_average": "Target",
}


def add(commands: "Commands") -> None:
    parser = add_command(commands, "run", run, "run one cell", EXAMPLES)
    parser.add_argument("--method", "-m", required=True, help="see 'fedprompt methods'")
    parser.add_argument("--dataset", "-d", required=True, help="see 'fedprompt datasets'")
    parser.add_argument("--partition", "-p", required=True, help="such as domains:m=2 or classes:s=10,clients=100")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
    parser.add_argument(
        "--policy",
        default="paper",
        help="of the head: local, global, global_then_ft; for methods without one none, none_then_ft; or paper "
        "(default): the method's own choice",
    )
    parser.add_argument("--rounds", type=int, help="communication rounds (protocol default 100)")
    parser.add_argument("--seed", type=int, default=0, help="of all random draws (default 0)")
    parser.add_argument(
        "--backbone", "-b", default="micro-vit", help="micro-vit, micro-clip, a plain timm ViT or clip:NAME"
    )
    parser.add_argument("--image-size", type=int, help="default: the backbone's own")
    add_environment(parser)
    add_cell_timeout(parser)
    add_tracking(parser)
    parser.add_argument("--restart", action="store_true", help="throw away what this cell has and start over")


def run(args: Namespace) -> int:
    from fedprompt.backbones.weights import backbone_spec
    from fedprompt.harness.cli._progress import run_and_record
    from fedprompt.harness.running.cell import make_cell

    load_plugins(args)
    params, protocol = split_settings(args.method, args.settings)
    if args.rounds is not None:
        protocol["rounds"] = args.rounds
    backbone = backbone_spec(args.backbone, args.weights, args.image_size)
    where = (args.method, args.dataset, args.partition, backbone)
    cell = make_cell(*where, args.seed, params, protocol, args.policy)
    [outcome] = run_and_record([cell], make_environment(args), args, {cell.hash} if args.restart else ())
    if outcome.error:
        if not outcome.folder.exists():
            raise UserError(outcome.error)
        return 1
    _print_summary(outcome)
    return 0


def _print_summary(outcome: "CellOutcome") -> None:
    from fedprompt.harness.federation.policy import POLICY_NAMES, metric_suffix, readings

    cell, summary = outcome.cell, json.loads((outcome.folder / "summary.json").read_text())
    counted, trained = int(summary["rounds_counted"]), cell.protocol.rounds
    rounds = f"(mean of the last {counted} of {trained} rounds)" if counted > 1 else f"(after round {trained})"
    for policy in readings(cell.protocol):
        suffix = metric_suffix(policy)
        if f"average{suffix}" in summary:
            average, worst = (100 * summary[f"{name}{suffix}"] for name in ("average", "worst_local"))
            print(f"{cell.label}, {POLICY_NAMES[policy]}: Average {average:.2f} %, Worst Local {worst:.2f} % {rounds}")
            held_out = {title: summary.get(name + suffix) for name, title in HELD_OUT.items()}
            shown = [f"{title} {100 * value:.2f} %" for title, value in held_out.items() if value is not None]
            if shown:
                print(f"  on test images that all clients share: {', '.join(shown)}")
    print(f"partition {summary['partition_hash'][:16]}, records in {outcome.folder}")
