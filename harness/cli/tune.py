"""`fedprompt tune`: searches with progress bars, then a table of the selected values."""

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedprompt.core.errors import UserError
from fedprompt.harness.cli import _options as options
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands
    from fedprompt.harness.running.cell import Cell
    from fedprompt.harness.running.run import RoundProgress
    from fedprompt.harness.tuning.search import Point, Result, Search
    from fedprompt.harness.tuning.study import Study

EXAMPLES = (
    "tune embedded",
    "tune embedded --methods fedvpt,pfedpg --sampler tpe --trials 20",
    "tune paper --executor slurm --slurm partition=gpu --workers 64",
)


def add(commands: "Commands") -> None:
    parser = add_command(commands, "tune", tune, "choose learning rates on held-out data", EXAMPLES)
    options.add_suite(parser)
    parser.add_argument("--methods", help="only these, separated by commas")
    parser.add_argument("--sampler", default="pattern", choices=("pattern", "tpe"), help="how points are proposed")
    parser.add_argument("--trials", type=int, help="budget of each study (default: the suite's)")
    parser.add_argument(
        "--keep", action="store_true", help="search only what no tuned file has values for, of this or another suite"
    )
    parser.add_argument("--storage", help="Optuna's database (default: optuna.db in the results folder)")
    options.add_executor(parser)
    options.add_environment(parser)
    options.add_tracking(parser)


def tune(args: Namespace) -> int:
    """1 if a study ended without any finished trial."""
    from optuna.exceptions import StorageInternalError

    from fedprompt.core.progress import progress
    from fedprompt.harness.recording.store import first_line, public
    from fedprompt.harness.tuning.search import searches
    from fedprompt.harness.tuning.study import Study, open_storage
    from fedprompt.harness.tuning.study_tracker import StudyTracker
    from fedprompt.harness.tuning.tune import tune as run_studies
    from fedprompt.harness.tuning.tuned import tuned_path, undecided

    environment = options.make_environment(args)
    suite = options.selected_suite(args)
    open_searches = searches(suite, args.sampler, args.trials)
    if not open_searches:
        raise UserError(
            f"suite {suite.name!r} has nothing to search: give values in tune.grid, or choose other methods."
        )
    path = tuned_path(suite, args.out)
    if args.keep:
        remaining = undecided(open_searches, suite, args.out)
        print(f"{len(open_searches) - len(remaining)} of {len(open_searches)} studies have been decided before")
        open_searches = remaining
    if not open_searches:
        return 0
    url = args.storage or f"sqlite:///{(args.out / 'optuna.db').resolve()}"
    storage = open_storage(url, args.out)
    studies = [Study(search, storage, args.out) for search in open_searches]
    tracker = StudyTracker(options.tracking_uri(args), args.out, suite.name)
    with progress() as bar:
        whole = bar.add_task(f"points of {len(studies)} studies", total=None)
        rows: dict[str, Any] = {}

        def report(cell: "Cell", event: "RoundProgress") -> None:
            if event.cell not in rows:
                rows[event.cell] = bar.add_task(cell.label, total=event.rounds)
            bar.update(rows[event.cell], completed=event.round)

        def ended(search: "Search", result: "Result", cells: "Sequence[Cell]") -> None:
            for cell in cells:
                if cell.hash in rows:
                    bar.remove_task(rows.pop(cell.hash))
            bar.update(whole, advance=1, total=sum(study.proposed + study.search.finalists for study in studies))
            if result.reason:
                reason = result.reason.removeprefix("diverged ")
                line = f"{result.state}: {search.label} {_values(result.point)}: {reason}"
                bar.console.print(line, soft_wrap=True, markup=False)

        try:
            run_studies(studies, environment, tracker, path, args.workers, report, ended, args.executor)
        except StorageInternalError as error:
            reason = public(url, first_line(error))
            raise UserError(f"Optuna's database {public(url)} stopped answering ({reason}); try again.") from error
    return _print_choices(studies, path)


def _print_choices(studies: "list[Study]", path: Path) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from fedprompt.harness.tuning.propose import edge_rates
    from fedprompt.harness.tuning.search import chosen_result

    table = Table("study", "finished", "default %", "best %", "chosen", "at an edge", title="validation accuracy")
    empty = 0
    for study in studies:
        results = study.results
        best = chosen_result(study.search, results)
        finished = [result for result in results if result.value is not None]
        empty += best is None
        table.add_row(
            escape(study.search.label),
            f"{len(finished)}/{len(results)}",
            results[0].state if results[0].value is None else _percent(results[0].value),
            _percent(best.score) if best else "",
            escape(_values(best.point)) if best else "[red]no trial finished[/]",
            ", ".join(edge_rates(study.search, results, best.point)) if best else "",
        )
    Console().print(table)
    print(f"chosen values: {path}" if path.exists() else "nothing was chosen")
    return 1 if empty else 0


def _values(point: "Point") -> str:
    return ", ".join(f"{name}={f'{value:.4g}' if isinstance(value, float) else value}" for name, value in point.items())


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"
