"""`fedprompt tune`: searches with bars, then a table of what was chosen."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedprompt.harness.cli._options import make_site, selected_suite, tracking_uri
from fedprompt.harness.core.errors import UserError

if TYPE_CHECKING:
    from fedprompt.harness.cells.cell import Cell
    from fedprompt.harness.cells.run import RoundProgress
    from fedprompt.harness.tuning.queue import Queue
    from fedprompt.harness.tuning.search import Point, Search


def tune(args: Namespace) -> int:
    """1 if a study ended without any finished trial."""
    from optuna.exceptions import StorageInternalError

    from fedprompt.harness.core.progress import progress
    from fedprompt.harness.tracking.store import first_line, public
    from fedprompt.harness.tuning.queue import Queue, open_storage
    from fedprompt.harness.tuning.run import tune as run_studies
    from fedprompt.harness.tuning.search import searches, tuned_path
    from fedprompt.harness.tuning.trials import StudyTracker

    site = make_site(args)
    suite = selected_suite(args)
    wanted = searches(suite, args.sampler, args.trials)
    if not wanted:
        raise UserError(
            f"suite {suite.name!r} has nothing to search: give values in tune.grid, or choose other methods."
        )
    url = args.storage or f"sqlite:///{(args.out / 'optuna.db').resolve()}"
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot write to {args.out}: {error.strerror}; choose another folder with --out DIR."
        ) from error
    storage = open_storage(url)
    queues = [Queue(search, storage) for search in wanted]
    tracker, path = StudyTracker(tracking_uri(args), args.out, suite.name), tuned_path(suite, args.out)
    with progress() as bar:
        total = sum(search.trials if search.sampler == "tpe" else len(search.points) for search in wanted)
        done = sum(result.value is not None for queue in queues for result in queue.results())
        whole = bar.add_task(f"trials of {len(wanted)} studies", total=total, completed=done)
        rows: dict[str, Any] = {}

        def report(cell: "Cell", event: "RoundProgress") -> None:
            if event.cell not in rows:
                rows[event.cell] = bar.add_task(cell.label, total=event.rounds)
            bar.update(rows[event.cell], completed=event.round)

        def ended(search: "Search", point: "Point", reason: str) -> None:
            for cell in search.cells(point):
                if cell.hash in rows:
                    bar.remove_task(rows.pop(cell.hash))
            if reason:
                bar.console.print(f"failed: {search.label} {_values(point)}: {reason}", soft_wrap=True, markup=False)
            else:
                bar.advance(whole)

        try:
            run_studies(queues, site, tracker, path, args.workers, report, ended)
        except StorageInternalError as error:
            reason = public(url, first_line(error))
            raise UserError(f"Optuna's database {public(url)} stopped answering ({reason}); try again.") from error
    return _print_choices(queues, path)


def _print_choices(queues: "list[Queue]", path: Path) -> int:
    from fedprompt.harness.tuning.run import choose

    table = Table("study", "finished", "default %", "best %", "chosen", title="validation accuracy")
    empty = 0
    for queue in queues:
        results = queue.results()
        best, finished = choose(results), [result for result in results if result.value is not None]
        empty += best is None
        table.add_row(
            escape(queue.search.label),
            f"{len(finished)}/{len(results)}",
            _percent(results[0].value),
            _percent(best.value if best else None),
            escape(_values(best.point)) if best else "[red]no trial finished[/]",
        )
    Console().print(table)
    print(f"chosen values: {path}" if path.exists() else "nothing was chosen")
    return 1 if empty else 0


def _values(point: "Point") -> str:
    return ", ".join(f"{name}={f'{value:.4g}' if isinstance(value, float) else value}" for name, value in point.items())


def _percent(value: float | None) -> str:
    return "failed" if value is None else f"{100 * value:.2f}"
