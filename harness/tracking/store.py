"""Where MLflow keeps runs: connecting, finding cells. MLflow is imported only in functions: it takes seconds."""

import logging
import os
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
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
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import mlflow

    for name, level in {"mlflow": logging.ERROR, "alembic": logging.WARNING, "urllib3": logging.ERROR}.items():
        logging.getLogger(name).setLevel(level)
    if is_database(uri):
        import mlflow.store.db.utils as database

        database.MAX_RETRY_COUNT = 3  # ten by default, which waits 100 s; there is no setting for it
    return mlflow.MlflowClient(uri)


@contextmanager
def alone(out: Path) -> Iterator[None]:
    """One process records at a time, so that two cannot both miss a run and create it."""
    out.mkdir(parents=True, exist_ok=True)
    with FileLock(out / ".tracking.lock"):
        yield


def experiment_name(dataset: str) -> str:
    return f"fedprompt/{short_name(dataset)}"


def find_runs(uri: str, cells: Iterable[Cell]) -> dict[str, "Run"]:
    """The run of each cell that has one, by the cell's hash; a finished one where there are several."""
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
    wanted_hashes = {cell.hash for cell in cells}
    by_hash = {run.data.tags.get("cell_hash", ""): run for run in runs}
    return {key: run for key, run in by_hash.items() if key in wanted_hashes}


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
