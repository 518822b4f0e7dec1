"""Where MLflow keeps runs: connecting, finding cells. MLflow is imported only in functions: it takes seconds."""

import logging
import os
import sqlite3
import textwrap
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from filelock import FileLock

from fedprompt.datasets import short_name
from fedprompt.harness.cells.cell import Cell
from fedprompt.harness.core.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

SETTINGS = {  # of MLflow, unless the user has set them; they must be there before it is imported
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # seven, and two minutes each, would hold up training
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
}


def connect(uri: str) -> "MlflowClient":
    """A client that is quiet and gives up soon."""
    _settle()
    import mlflow

    for name, level in {"mlflow": logging.ERROR, "alembic": logging.WARNING, "urllib3": logging.ERROR}.items():
        logging.getLogger(name).setLevel(level)
    if is_database(uri):
        import mlflow.store.db.utils as database

        database.MAX_RETRY_COUNT = 3  # ten by default, which waits 100 s; there is no setting for it
    return mlflow.MlflowClient(uri)


def _settle() -> None:
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def is_refusal(error: Exception) -> bool:
    """Whether the store is there and does not want what it got; without rights to it, it is as good as away."""
    from mlflow.exceptions import MlflowException

    if not isinstance(error, MlflowException):
        return False
    status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]
    return 400 <= status < 500 and status not in (401, 403, 408, 429)


def make_database(uri: str) -> None:
    """Create an sqlite database of MLflow, if there is none, under another name first.

    MLflow creates it by dozens of migrations; being killed in between leaves tables that it never accepts again. A
    database in that state, which has no runs, is made anew.
    """
    path = Path(uri.partition("?")[0].removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or (path.exists() and not _is_half_made(path)):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        connect(f"sqlite:///{scratch}").search_experiments(max_results=1)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _is_half_made(path: Path) -> bool:
    """Looked at without MLflow, which would keep a connection to it."""
    with closing(sqlite3.connect(path, timeout=5)) as database:
        try:
            if database.execute("SELECT count(*) FROM runs").fetchone()[0]:
                return False
            [(version,)] = database.execute("SELECT version_num FROM alembic_version").fetchall()
        except sqlite3.OperationalError as error:
            return "no such table" in str(error)
        except (sqlite3.DatabaseError, ValueError):  # not a database of MLflow, which will say so
            return False
    _settle()
    from mlflow.store.db.utils import _get_latest_schema_revision

    return bool(version != _get_latest_schema_revision())  # type: ignore[no-untyped-call]


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """One process records at a time, so that two cannot both miss a run and create it."""
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / ".tracking.lock"):
        yield


def experiment_name(dataset: str) -> str:
    return f"fedprompt/{short_name(dataset)}"


class FoundRuns(NamedTuple):
    """Runs by the hash of their cell."""

    current: "dict[str, Run]"  # the finished one, if a cell has several
    older: "dict[str, Run]"  # of cells without a finished run: the last one that other code has finished


def find_runs(uri: str, cells: Iterable[Cell]) -> FoundRuns:
    cells = list(cells)
    database = uri.partition("?")[0].removeprefix("sqlite:///")
    if uri.startswith("sqlite:///") and not Path(database).exists():
        raise UserError(f"no MLflow database {database}; run `fedprompt bench` or `fedprompt sync` first.")
    try:
        client = connect(uri)
        runs: list[Run] = []
        for dataset, phase in sorted({(cell.dataset, cell.phase) for cell in cells}):
            experiment = client.get_experiment_by_name(experiment_name(dataset))
            runs += _runs_of(client, experiment, f"tags.phase = '{phase}'") if experiment else []
    except Exception as error:  # as in Tracker: whatever is below MLflow
        raise UserError(
            f"MLflow at {public(uri)} cannot be read ({public(uri, first_line(error))}); check --tracking-uri."
        ) from error
    runs.sort(key=lambda run: (run.info.status == "FINISHED", -run.info.start_time))
    by_hash = {run.data.tags.get("cell_hash", ""): run for run in runs}
    current = {cell.hash: by_hash[cell.hash] for cell in cells if cell.hash in by_hash}
    finished = sorted((run for run in runs if run.info.status == "FINISHED"), key=lambda run: run.info.end_time)
    by_setup = {run.data.tags.get("cell_setup", ""): run for run in finished}
    lacking = (cell for cell in cells if cell.hash not in current or current[cell.hash].info.status != "FINISHED")
    return FoundRuns(current, {cell.hash: by_setup[cell.setup] for cell in lacking if cell.setup in by_setup})


def _runs_of(client: "MlflowClient", experiment: "Experiment", condition: str) -> Iterator["Run"]:
    page = client.search_runs([experiment.experiment_id], condition)
    yield from page
    while page.token:
        page = client.search_runs([experiment.experiment_id], condition, page_token=page.token)
        yield from page


def is_database(uri: str) -> bool:
    return urlsplit(uri).scheme.split("+")[0] in ("sqlite", "postgresql", "mysql", "mssql")


def public(uri: str, text: str | None = None) -> str:
    """``text`` (the URI itself by default) without the URI's user name and password."""
    secret, at, _ = urlsplit(uri).netloc.rpartition("@")
    return (text or uri).replace(secret + at, "") if secret else text or uri


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return textwrap.shorten(f"{type(error).__name__}: {lines[0]}", 200) if lines else type(error).__name__
