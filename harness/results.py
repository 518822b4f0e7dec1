"""Results as DataFrames, from run folders or from MLflow, and a figure of them. For notebooks and scripts.

MLflow has the files of every run folder as artifacts, so both sources give the same frames.
"""

import json
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd

from fedprompt.core.errors import UserError
from fedprompt.harness.measuring.metrics import on_test_set, per_client, trained_reading
from fedprompt.harness.measuring.score_frame import scores_frame
from fedprompt.harness.recording.store import connect, experiment_name, first_line, public
from fedprompt.harness.running.cell import Cell, cell_from_json
from fedprompt.harness.running.folder import damaged_file, is_done
from fedprompt.harness.running.journal import SCORES
from fedprompt.harness.running.suite import Row
from fedprompt.methods import registry

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from mlflow.entities import Run

T = TypeVar("T")
IDENTITY = ("cell", "method", "dataset", "partition", "seed", "phase", "backbone", "code")  # which run a row belongs to
ORDER = ["dataset", "partition", "method", "seed", "cell"]  # of rows


def read_records(source: str | Path, cells: Iterable[Cell] | None = None) -> pd.DataFrame:
    """One row per finished run, evaluated round, reading and client: what the run is, its counts and its accuracy.

    ``source`` is a results folder, or the URI of an MLflow server or database (`sqlite:///...`, `http://...`).
    Only runs of ``cells`` are read, by default all there are.
    """

    def records(cell: Cell, folder: Path) -> pd.DataFrame:
        frame = pd.read_csv(folder / "records.csv", dtype={"partition": str})
        frame = per_client(frame.rename(columns={"partition": "partition_hash"}).drop(columns="seed"))
        return frame.assign(**_identity(cell))[[*IDENTITY, *frame.columns]]

    frames = list(_read(source, cells, "records.csv", records))
    return pd.concat(frames, ignore_index=True).sort_values([*ORDER, "round"], kind="stable", ignore_index=True)


def read_scores(source: str | Path, cells: Iterable[Cell] | None = None) -> pd.DataFrame:
    """One row per finished run, reported round, reading, client and image: what the run is, and how it was predicted.

    `measure_clients` and `measure_rounds` make numbers of these rows, `scores_frame` says what the columns are.
    ``source`` and ``cells`` as for `read_records`. Runs from before there were scores are left out, with a warning.
    """

    def scores(cell: Cell, folder: Path) -> pd.DataFrame | None:
        if not (folder / SCORES).exists():
            warnings.warn(f"{cell.label} ({cell.hash}) has no {SCORES}; left out.", stacklevel=2)
            return None
        frame = scores_frame((folder / SCORES).read_bytes(), folder / SCORES)
        return frame.assign(**_identity(cell))[[*IDENTITY, *frame.columns]]

    frames = [frame for frame in _read(source, cells, SCORES, scores) if frame is not None]
    if not frames:
        raise UserError(f"no run in {public(str(source))} has scores; they were finished before scores were kept.")
    joined = pd.concat(frames, ignore_index=True)
    return joined.astype({name: "category" for name in joined if joined[name].dtype == object})


def read_summaries(source: str | Path, cells: Iterable[Cell] | None = None) -> pd.DataFrame:
    """One row per finished run: what it is, its method's parameters (`params.lr`, ...) and the reported numbers.

    ``source`` and ``cells`` as for `read_records`.
    """

    def summary(cell: Cell, folder: Path) -> dict[str, Any]:
        numbers = json.loads((folder / "summary.json").read_text())
        environment = {f"environment.{key}": value for key, value in numbers.pop("environment").items()}
        params = {f"params.{key}": value for key, value in cell.params.items()}
        return {**_identity(cell), **params, **numbers, **environment}

    rows = _read(source, cells, "summary.json", summary)
    frame = pd.DataFrame(rows).sort_values(ORDER, ignore_index=True)
    groups = ["params.", "", "environment."]  # the order of columns must not depend on that of runs
    rest = sorted((groups.index(name[: name.find(".") + 1]), name) for name in frame.columns if name not in IDENTITY)
    return frame[[*IDENTITY, *(name for _, name in rest)]]


def draw_accuracy(records: pd.DataFrame) -> "Figure":
    """Average accuracy over rounds: one panel per data set and partition, one line per method, a band over its runs.

    ``records`` are those of `read_records`, read before any fine-tuning; choose rows first if runs of one method differ
    in more than their seeds.
    """
    from fedprompt.harness.report.figures.curves import band
    from fedprompt.harness.report.figures.style import label_y, legend, looks, panels, print_style

    trained = trained_reading(on_test_set(records[~records["unseen"] & (records["samples"] == 0)]))
    keys = ["dataset", "partition", "method", "cell", "round"]
    averages = (100 * trained.groupby(keys)["accuracy"].mean()).rename("value").reset_index()
    known, methods = registry().names(), averages["method"].unique()
    titles = {name: registry().get(name).title if name in known else name for name in methods}
    appearance = looks([Row(name, title, name) for name, title in titles.items()])
    columns = list(averages.groupby(["dataset", "partition"]))
    with print_style():
        figure, axes = panels(len(columns))
        for ax, ((dataset, partition), column) in zip(axes, columns, strict=True):
            for name in column["method"].unique():
                band(ax, column[column["method"] == name], "round", "value", titles[name], **appearance[name].drawn())
            ax.set(title=f"{dataset}, {partition}", xlabel="round")
            label_y(ax, "average accuracy (%)")
        legend(figure, titles, appearance)
    return figure


def _identity(cell: Cell) -> dict[str, Any]:
    values = (
        cell.hash,
        cell.method,
        cell.dataset,
        cell.partition,
        cell.seed,
        cell.phase,
        cell.backbone.name,
        cell.code,
    )
    return dict(zip(IDENTITY, values, strict=True))


def _read(source: str | Path, cells: Iterable[Cell] | None, name: str, parse: Callable[[Cell, Path], T]) -> list[T]:
    """What ``parse`` makes of each run that is wanted, given its cell and a folder with the file ``name``."""
    hashes = None if cells is None else {cell.hash for cell in cells}
    folders = _mlflow_folders(str(source), hashes, name) if "://" in str(source) else _folders(Path(source), hashes)
    parsed = [parse(cell_from_json((folder / "cell.json").read_text()), folder) for folder in folders]
    if not parsed:
        raise UserError(f"no finished runs in {public(str(source))}; run cells first, or name another place.")
    return parsed


def _folders(out: Path, hashes: set[str] | None) -> Iterator[Path]:
    for folder in sorted((out / "runs").glob("*")):
        if is_done(folder) and (hashes is None or folder.name in hashes):
            if damaged := damaged_file(folder):
                warnings.warn(f"{folder / damaged} is not what the finished run wrote; left out.", stacklevel=2)
            else:
                yield folder


def _mlflow_folders(uri: str, hashes: set[str] | None, name: str) -> Iterator[Path]:
    """Each holds the artifacts of one run while it is looked at."""
    database = uri.partition("?")[0].removeprefix("sqlite:///")
    if uri.startswith("sqlite:///") and not Path(database).exists():  # MLflow would create it
        raise UserError(f"no MLflow database {database}; run cells first, or name another place.")
    try:
        for run in _mlflow_runs(uri, hashes):
            with tempfile.TemporaryDirectory() as scratch:
                for file in ("cell.json", name):
                    _download(uri, run, file, scratch)
                yield Path(scratch)
    except UserError:
        raise
    except Exception as error:  # drivers and network stacks raise what they like
        raise UserError(f"MLflow at {public(uri)} cannot be read ({public(uri, first_line(error))}).") from error


def _mlflow_runs(uri: str, hashes: set[str] | None) -> "Iterable[Run]":
    client = connect(uri)
    experiments = client.search_experiments(filter_string=f"name LIKE '{experiment_name('%')}'")
    runs: dict[str, Run] = {}
    token: str | None = ""
    while experiments and token is not None:
        ids = [experiment.experiment_id for experiment in experiments]
        page = client.search_runs(ids, "attributes.status = 'FINISHED'", page_token=token or None)
        runs |= {run.data.tags["cell_hash"]: run for run in page if "cell_hash" in run.data.tags}
        token = page.token or None
    return [run for key, run in runs.items() if hashes is None or key in hashes]


def _download(uri: str, run: "Run", name: str, folder: str) -> None:
    from mlflow.artifacts import download_artifacts

    download_artifacts(artifact_uri=f"{run.info.artifact_uri}/{name}", dst_path=folder, tracking_uri=uri)
