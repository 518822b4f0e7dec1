"""The files of recorded runs as frames: accuracies of every client, logs of every round.

They are artifacts in MLflow, so figures, like tables, need nothing but the tracking URI.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedprompt.harness.cells.suite import Planned, Setting
from fedprompt.harness.federation.metrics import with_accuracy
from fedprompt.harness.tracking.store import find_runs, first_line, public

if TYPE_CHECKING:
    from mlflow.entities import Run

# Where a run stands in the tables; `column` is the number of the setting, for labels alone may repeat.
PLACE = ("table", "kind", "column", "setting", "row", "title", "cell", "seed")
RECORD = ("round", "client", "correct", "total", "participated", "unseen", "samples", "partition")
ROUND = ("round", "cohort", "loss", "floats_down", "floats_up", "bytes_down", "bytes_up")


def load_records(uri: str, planned: Sequence[Planned]) -> pd.DataFrame:
    """A row a planned entry, evaluated round and client, of finished runs: its place, the counts and the accuracy."""
    return with_accuracy(_load(uri, planned, "records.csv", RECORD, {"partition": str}))


def load_rounds(uri: str, planned: Sequence[Planned]) -> pd.DataFrame:
    """A row a planned entry and round, of finished runs: its place, the cohort's loss and payload, diagnostics."""
    return _load(uri, planned, "rounds.csv", ROUND, {"cohort": str})


def _load(
    uri: str, planned: Sequence[Planned], name: str, columns: Sequence[str], types: Mapping[str, type]
) -> pd.DataFrame:
    runs = find_runs(uri, {entry.cell.hash: entry.cell for entry in planned}.values())
    finished = {key: run for key, run in runs.items() if run.info.status == "FINISHED"}
    files = dict(_files(uri, finished, name, types))
    settings: list[Setting] = []
    frames = [pd.DataFrame(columns=[*PLACE, *columns])]
    for setting, row, cell in planned:
        if setting not in settings:
            settings.append(setting)
        if cell.hash in files:
            column = settings.index(setting)
            place: tuple[Any, ...] = (
                setting.table,
                setting.kind,
                column,
                setting.label,
                row.key,
                row.title,
                cell.hash,
                cell.seed,
            )
            frames.append(files[cell.hash].assign(**dict(zip(PLACE, place, strict=True))))
    # The empty frame keeps the columns where nothing is finished; among others it would blur their types.
    frame = pd.concat(frames[1:] or frames, ignore_index=True)
    return frame[[*PLACE, *(name for name in frame if name not in PLACE)]]


def _files(
    uri: str, runs: Mapping[str, "Run"], name: str, types: Mapping[str, type]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """The file of each run that can be read, once; what cannot costs one warning, for the tables do without it."""
    from mlflow.artifacts import download_artifacts

    unread = []
    with TemporaryDirectory() as scratch:
        for key, run in runs.items():
            try:
                # By its place: a client that is given the run's id looks the run up again, which takes far longer.
                place = f"{run.info.artifact_uri}/{name}"
                file = download_artifacts(artifact_uri=place, dst_path=scratch, tracking_uri=uri)
                yield key, pd.read_csv(file, dtype=dict(types))
            except Exception as error:  # whatever the artifact store raises, or a damaged file
                unread.append(first_line(error))
    if unread:
        print(
            f"warning: {name} of {len(unread)} runs cannot be read from {public(uri)} ({public(uri, unread[0])}); "
            "figures leave them out.",
            file=sys.stderr,
        )
