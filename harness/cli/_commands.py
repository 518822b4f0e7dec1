"""What each command does with its parsed arguments; returns an exit code or None for success."""

import dataclasses
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedprompt.harness.core.errors import UserError, unknown
from fedprompt.methods import load_plugin, registry

if TYPE_CHECKING:
    from fedprompt.harness.cells.suite import Suite


def run(args: Namespace) -> int:
    from fedprompt.harness.cells.cell import make_cell
    from fedprompt.harness.model.weights import backbone_spec

    _plugins(args)
    params, protocol = _split_settings(args.method, args.settings)
    if args.rounds is not None:
        protocol["rounds"] = args.rounds
    backbone = backbone_spec(args.backbone, args.weights, args.image_size)
    cell = make_cell(args.method, args.dataset, args.partition, backbone, args.seed, params, protocol)
    return execute_cells([cell], args, suite="", workers=1, executor="local")


def bench(args: Namespace) -> int:
    from fedprompt.harness.report import write_report

    suite = chosen_suite(args)
    code = execute_cells(suite.cells(), args, suite.name, args.workers, args.executor)
    write_report(suite, tracking_uri(args), args.out, Console())
    return code


def report(args: Namespace) -> None:
    from fedprompt.harness.report import write_report

    write_report(chosen_suite(args), tracking_uri(args), args.out, Console())


def tune(args: Namespace) -> int:
    from fedprompt.harness.cli._tune import tune as tune_suite

    return tune_suite(args)


def plan(args: Namespace) -> None:
    from fedprompt.harness.cli._plan import plan as plan_suite

    plan_suite(args)


def chosen_suite(args: Namespace) -> "Suite":
    """The suite of the arguments, cut to the chosen methods and seeds, with tuned values where there are some."""
    from fedprompt.harness.cells.suite import load_suite
    from fedprompt.harness.tuning.search import tuned_path, with_tuned

    _plugins(args)
    if getattr(args, "workers", 1) < 1:
        raise UserError(f"--workers {args.workers} is out of range; it must be at least 1.")
    suite = load_suite(args.suite, args.weights)
    if getattr(args, "methods", None):
        suite = suite.only(args.methods.split(","))
    if getattr(args, "seeds", None):
        suite = dataclasses.replace(suite, seeds=_whole_numbers(args.seeds, "--seeds"))
    if getattr(args, "untuned", True):
        return suite
    suite = with_tuned(suite, args.out)
    if suite.tuned:
        cells = suite.cells()
        tuned = sum((cell.method, cell.dataset, cell.partition) in suite.tuned for cell in cells)
        path = tuned_path(suite, args.out)
        print(f"{tuned} of {len(cells)} cells use tuned values from {path} (--untuned: none)", file=sys.stderr)
    return suite


def methods(args: Namespace) -> None:
    from fedprompt.harness.cli._describe import describe_method, list_methods

    _plugins(args)
    console = Console()
    if args.name is None:
        list_methods(console)
    else:
        describe_method(registry().get(args.name), console)


def datasets(args: Namespace) -> None:
    from fedprompt.datasets import dataset_names
    from fedprompt.harness.cli._describe import describe_dataset, list_datasets

    console = Console()
    if args.name is None:
        list_datasets(console)
        return
    if args.name not in dataset_names() and not args.name.startswith("folder:"):
        raise unknown("data set", args.name, [*dataset_names(), "folder:PATH"])
    describe_dataset(args.name, args.data_root, args.partition, args.seed, args.plot, console)


def prepare(args: Namespace) -> int:
    from fedprompt.datasets import prepare as prepare_dataset

    report = prepare_dataset(args.name, args.root, skip_bad=args.skip_bad)
    print(report.format_report())
    return 0 if report.complete else 1


def check(args: Namespace) -> int:
    from fedprompt.harness.conformance import check_method

    _plugins(args)
    cls = registry().get(args.method)
    params, protocol = _split_settings(args.method, args.settings)
    if protocol:
        raise unknown(
            f"parameter of {args.method}", next(iter(protocol)), [f.name for f in dataclasses.fields(cls.Params)]
        )
    console, failed = Console(highlight=False), 0
    for result in check_method(cls, params):
        failed += not result.ok
        mark = "[green]ok  [/]" if result.ok else "[red]FAIL[/]"
        console.print(f"{mark} {result.name}" + ("" if result.ok else f": {escape(result.reason)}"), soft_wrap=True)
    console.print(f"{args.method}: " + (f"{failed} properties do not hold" if failed else "every property holds"))
    return 1 if failed else 0


def sync(args: Namespace) -> int:
    from fedprompt.harness.tracking.tracker import sync as sync_runs

    recorded, present, failed = sync_runs(args.out, tracking_uri(args))
    print(f"recorded {recorded}, already there {present}, failed {failed}")
    return 1 if failed else 0


def pretrain(args: Namespace) -> None:
    from fedprompt.harness.model import pretraining, pretraining_clip

    train: Callable[..., dict[str, Any]] = pretraining.pretrain
    if args.backbone == "micro-clip":
        train = pretraining_clip.pretrain_clip
    if args.out.suffix != ".safetensors":
        raise UserError(f"--out {str(args.out)!r} must end in .safetensors.")
    options = {} if args.steps is None else {"steps": args.steps}
    report = train(args.out, seed=args.seed, **options)
    table = Table("measured", "value")
    for key, value in report.items():
        table.add_row(key, str(value))
    Console().print(table)


def perf(args: Namespace) -> None:
    from fedprompt.harness.planning.speed import compare

    if args.repeats < 1:
        raise UserError(f"--repeats {args.repeats} is out of range; it must be at least 1.")
    table = Table("work", "way", "median ms", "speed-up")
    for group, way, seconds, ratio in compare(args.repeats):
        table.add_row(group, way, f"{1000 * seconds:.1f}", f"{ratio:.2f}")
    Console().print(table)


def execute_cells(cells: list[Any], args: Namespace, suite: str, workers: int, executor: str) -> int:
    """Run cells with bars, record each as it ends, name the failed ones; 1 if there are any."""
    from fedprompt.harness.cells.executor import execute
    from fedprompt.harness.cells.folder import is_done, run_folder
    from fedprompt.harness.cells.run import Progress, Site, choose_device
    from fedprompt.harness.core.progress import progress
    from fedprompt.harness.tracking.tracker import Tracker

    if args.threads < 1:
        raise UserError(f"--threads {args.threads} is out of range; it must be at least 1.")
    weights = None if args.weights in (None, "hub", "random") else args.weights
    device = choose_device(args.device)
    plugins = tuple(str(Path(plugin).resolve()) for plugin in args.plugin)
    site = Site(args.out, args.data_root, weights, device, args.threads, plugins)
    finished: list[Any] = []
    todo: list[Any] = []
    for cell in cells:
        (finished if not args.restart and is_done(run_folder(site.out, cell)) else todo).append(cell)
    console, tracker = Console(stderr=True, highlight=False), Tracker(tracking_uri(args), args.out, suite)
    if finished:
        console.print(f"{len(finished)} of {len(cells)} cells are finished already")
    for cell in finished:
        tracker.finish(run_folder(site.out, cell))  # it may have ended while MLflow was away
    by_hash, failures = {cell.hash: cell for cell in cells}, []
    with progress() as bar:
        whole = bar.add_task("cells", total=len(cells), completed=len(finished))
        rows: dict[str, Any] = {}

        def tell(event: Progress) -> None:
            cell = by_hash[event.cell]
            if event.cell not in rows:
                rows[event.cell] = bar.add_task(cell.label, total=event.rounds)
            bar.update(rows[event.cell], completed=event.round)
            tracker.round(cell, event)

        for outcome in execute(todo, site, tell, min(workers, max(1, len(todo))), executor, args.restart):
            bar.advance(whole)
            if outcome.cell.hash in rows:
                bar.remove_task(rows.pop(outcome.cell.hash))
            if outcome.error:
                failures.append(outcome)
                if suite or outcome.folder.exists():  # bad input of a single run is no result
                    tracker.failed(outcome.cell, outcome.error)
                bar.console.print(f"failed: {outcome.cell.label}: {outcome.error}", soft_wrap=True)
            else:
                tracker.finish(outcome.folder)
    if len(cells) == 1 and not failures:
        _print_cell(cells[0], run_folder(site.out, cells[0]))
    return 1 if failures else 0


def _print_cell(cell: Any, folder: Path) -> None:
    import json

    summary = json.loads((folder / "summary.json").read_text())
    print(
        f"{cell.label}: Average {100 * summary['average']:.2f} %, Worst Local {100 * summary['worst_local']:.2f} % ",
        end="",
    )
    print(f"(mean of the last {int(summary['rounds_counted'])} of {cell.protocol.rounds} rounds)")
    print(f"partition {summary['partition_hash'][:16]}, records in {folder}")


def _split_settings(method: str, settings: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """`KEY=VALUE` goes to the method if it has that parameter, else to the protocol."""
    from fedprompt.harness.federation.protocol import Protocol

    own = {field.name for field in dataclasses.fields(registry().get(method).Params)}
    common = {field.name for field in dataclasses.fields(Protocol)}
    params: dict[str, str] = {}
    protocol: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UserError(f"--set {setting!r} is not KEY=VALUE.")
        if key not in own | common:
            raise unknown(f"parameter of {method} or field of the protocol", key, own | common)
        (params if key in own else protocol)[key] = value
    return params, protocol


def _whole_numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise UserError(f"{option} {text!r} must be whole numbers separated by commas, such as 0,1,2.") from error


def _plugins(args: Namespace) -> None:
    for plugin in args.plugin:
        load_plugin(plugin)


def tracking_uri(args: Namespace) -> str:
    from fedprompt.harness.tracking.tracker import default_uri

    return args.tracking_uri or default_uri(args.out)
