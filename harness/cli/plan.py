"""`fedprompt plan`: the costs of a suite as tables."""

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from fedprompt.core.errors import UserError
from fedprompt.core.text import bytes_text, duration, scaled
from fedprompt.harness.cli import _options as options
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fedprompt.harness.cli._parser import Commands
    from fedprompt.harness.planning.plan import Plan
    from fedprompt.harness.running.environment import RunEnvironment
    from fedprompt.harness.running.suite import Suite

PlanLine = Mapping[str, Any]  # of `Plan.frame`
WIDTH = 112  # columns that the tables take, also when standard output is no terminal
LEGEND = (
    "Images: forward passes of one image in training, adaptation, evaluation, statistics and frozen features.",
    "Memory: what autograd keeps in the largest training step; weights and temporary tensors come on top.",
    "Down, up: of one client in a round; sent: of all clients and rounds, both ways.",
    "Time: of one worker, for cells that are not finished. A cell in several tables counts in the first.",
)
EXAMPLES = ("plan embedded", "plan paper --flops 60e12 --workers 8")


def add(commands: "Commands") -> None:
    parser = add_command(commands, "plan", plan, "what a suite costs, before it is run", EXAMPLES)
    options.add_suite(parser)
    options.add_selection(parser)
    parser.add_argument("--flops", type=float, help="sustained FLOPS of another machine, instead of measuring this one")
    parser.add_argument(
        "--workers", type=int, help="processes (default: all cores); with --flops machines (default: 1)"
    )
    options.add_untuned(parser)
    options.add_environment(parser)


def plan(args: Namespace) -> None:
    if args.flops is not None and not args.flops > 0:
        raise UserError(f"--flops {args.flops:g} is out of range; give FLOPs per second, such as 60e12.")
    from rich.console import Console

    from fedprompt.harness.planning.plan import plan_suite

    args.workers = (1 if args.flops else os.cpu_count() or 1) if args.workers is None else args.workers
    environment = options.make_environment(args)
    suite = options.selected_suite(args)
    planned = plan_suite(suite, environment, args.workers, args.flops)
    crew = "1 worker" if args.workers == 1 else f"{args.workers} workers"
    pace = f"with {crew} at {scaled(args.flops, 'FLOPS')}" if args.flops else f"with {crew} on this machine"
    lines: Any = planned.frame().to_dict("records")
    console = Console(highlight=False)
    notes = (*planned.notes, *_tuning_note(suite, planned, environment, 1 if args.flops else args.workers))
    print_plan(lines, planned.seconds, pace, notes, Console(highlight=False, width=max(console.width, WIDTH)))


def _tuning_note(suite: "Suite", planned: "Plan", environment: "RunEnvironment", workers: int) -> list[str]:
    """What `fedprompt tune` would cost: the cells of all trials, at the pace of the method's own."""
    from fedprompt.harness.planning.plan import count_flops
    from fedprompt.harness.tuning.search import searches

    open_searches = searches(suite)
    cells = [cell for search in open_searches for cell in search.base]
    if not cells:
        return []
    counted = count_flops(cells, environment)
    total = sum(s.cell_count * mean(counted[cell.hash] for cell in s.base) for s in open_searches)
    trials = sum(search.cell_count for search in open_searches)
    pace = [(plan.seconds, plan.flops) for plan in planned.cells.values() if not plan.finished]
    speed = sum(seconds for seconds, _ in pace) / max(1, sum(flops for _, flops in pace))
    time = f", about {duration(speed * total / workers)}" if pace else ""
    studies = f"{len(open_searches)} {'study' if len(open_searches) == 1 else 'studies'}"
    return [
        f"Not included: `fedprompt tune {suite.argument}`, {studies} with {trials} cells in all, "
        f"{scaled(total, 'FLOP')}{time}"
    ]


def print_plan(lines: Sequence[PlanLine], seconds: float, pace: str, notes: Sequence[str], console: "Console") -> None:
    """One table for each of the suite's, the total, and what the numbers are based on."""
    for name in dict.fromkeys(line["table"] for line in lines):
        console.print(_table(name, [line for line in lines if line["table"] == name]))
        console.print()
    whole = _sums(lines)
    done = f" ({whole['finished']} finished)" if whole["finished"] else ""
    console.print(
        f"{whole['cells']} cells{done}, {whole['images']:,} images seen, {scaled(whole['flops'], 'FLOP')}, "
        f"{bytes_text(whole['bytes_sent'])} sent, [bold]{duration(seconds)}[/] {pace}",
        soft_wrap=True,
    )
    for note in (*(f"{note}." for note in notes), *LEGEND):
        console.print(f"[dim]{note}[/]", soft_wrap=True)


def _table(name: str, lines: Sequence[PlanLine]) -> "Table":
    from rich.table import Table

    table = Table(title=name, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="")
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", max_width=34)
    for heading in ("cells", "images", "FLOP", "memory", "down", "up", "sent", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    setting = None
    for line in lines:
        payload = [bytes_text(line[key]) for key in ("activation_bytes", "bytes_down", "bytes_up")]
        shown = "" if line["setting"] == setting else line["setting"]
        table.add_row(shown, line["title"], *(_work(line, payload) if line["cells"] else ["above", "", "", *payload]))
        setting = line["setting"]
    table.add_section()
    table.add_row("total", "", *_work(_sums(lines), ["", "", ""]))
    return table


def _work(line: PlanLine, payload: Sequence[str]) -> list[str]:
    """What a table shows of one line, from its number of cells on."""
    done = f"{line['finished']} of " if line["finished"] else ""
    counts = [f"{done}{line['cells']}", scaled(line["images"]), scaled(line["flops"])]
    return [*counts, *payload, bytes_text(line["bytes_sent"]), duration(line["seconds"])]


def _sums(lines: Sequence[PlanLine]) -> PlanLine:
    keys = ("cells", "finished", "images", "flops", "bytes_sent", "seconds")
    return {key: sum(line[key] for line in lines) for key in keys}
