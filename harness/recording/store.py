"""Where MLflow keeps runs: connecting, finding cells. MLflow is imported only in functions: it takes seconds."""

import logging
import os
import shutil
import sqlite3
import textwrap
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from filelock import FileLock

from fedprompt.core.errors import UserError
from fedprompt.core.files import cache_dir
from fedprompt.datasets import short_name
from fedprompt.harness.running.cell import Cell

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
    """Whether the store is reachable, but rejected the request; without rights to it, it counts as away."""
    from mlflow.exceptions import MlflowException

    if not isinstance(error, MlflowException):
        return False
    status: int = error.get_http_status_code()  # type: ignore[no-untyped-call]
    return 400 <= status < 500 and status not in (401, 403, 408, 429)


def make_database(uri: str) -> None:
    """Create an sqlite database of MLflow, if there is none, under another name first.

    MLflow creates it by dozens of migrations; being killed in between leaves tables that it never accepts again. A
    database in that state, which has no runs, is made again.
    """
    path = Path(uri.partition("?")[0].removeprefix("sqlite:///"))
    if not uri.startswith("sqlite:///") or (path.exists() and not _is_half_made(path)):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        if not _copy_template(scratch):
            connect(f"sqlite:///{scratch}").search_experiments(max_results=1)
            _keep_template(scratch)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def _template() -> Path:
    """A database of this version of MLflow with empty tables: making one takes seconds, copying it none."""
    return cache_dir() / f"mlflow-{version('mlflow')}.db"


def _copy_template(path: Path) -> bool:
    """Whether ``path`` is now a copy of the template; a damaged template is removed."""
    try:
        template = _template()
        shutil.copyfile(template, path)
    except (OSError, UserError):
        return False
    with closing(sqlite3.connect(path)) as database:
        try:
            if database.execute("PRAGMA integrity_check").fetchone() == ("ok",) and not _is_half_made(path):
                return True
        except sqlite3.DatabaseError:
            pass
    for broken in (path, template):
        broken.unlink(missing_ok=True)
    return False


def _keep_template(path: Path) -> None:
    """Keep a copy of the new database ``path``, without the experiment that MLflow adds: it names a folder."""
    with suppress(OSError, sqlite3.Error, UserError):  # without it, the next database takes as long as this one
        template = _template()
        template.parent.mkdir(parents=True, exist_ok=True)
        scratch = template.with_name(f".{template.name}-{uuid.uuid4().hex}")
        try:
            shutil.copyfile(path, scratch)
            with closing(sqlite3.connect(scratch)) as database, database:
                database.execute("DELETE FROM experiments")
            scratch.replace(template)
        finally:
            scratch.unlink(missing_ok=True)


def _is_half_made(path: Path) -> bool:
    """Looked at without MLflow, which would keep a connection to it."""
    with closing(sqlite3.connect(path, timeout=5)) as database:
        try:
            if database.execute("SELECT count(*) FROM runs").fetchone()[0]:
                return False
            [(revision,)] = database.execute("SELECT version_num FROM alembic_version").fetchall()
        except sqlite3.OperationalError as error:
            return "no such table" in str(error)
        except (sqlite3.DatabaseError, ValueError):  # not a database of MLflow, which will say so
            return False
    _settle()
    from mlflow.store.db.utils import _get_latest_schema_revision

    return bool(revision != _get_latest_schema_revision())  # type: ignore[no-untyped-call]


@contextmanager
def tracking_lock(out: Path) -> Iterator[None]:
    """One process records at a time, so that two cannot both miss a run and create it."""
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / ".tracking.lock"):
        yield


def experiment_name(dataset: str) -> str:
    """The experiment in which the runs on a data set are recorded."""
    return f"fedprompt/{short_name(dataset)}"


class FoundRuns(NamedTuple):
    """Runs by the hash of their cell."""

    current: "dict[str, Run]"  # the finished one, if a cell has several
    older: "dict[str, Run]"  # of cells without a finished run: the last one that other code has finished


def find_runs(uri: str, cells: Iterable[Cell]) -> FoundRuns:
    """The runs of ``cells``, by one search per data set and phase. A UserError if the store cannot be read."""
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
    """Whether runs are written straight to a database, without a server in between."""
    return urlsplit(uri).scheme.split("+")[0] in ("sqlite", "postgresql", "mysql", "mssql")


def public(uri: str, text: str | None = None) -> str:
    """``text`` (the URI itself by default) without the URI's user name and password."""
    secret, at, _ = urlsplit(uri).netloc.rpartition("@")
    return (text or uri).replace(secret + at, "") if secret else text or uri


def first_line(error: Exception) -> str:
    """The name of the error and the first line of its text, at most 200 characters."""
    lines = str(error).strip().splitlines()
    return textwrap.shorten(f"{type(error).__name__}: {lines[0]}", 200) if lines else type(error).__name__
