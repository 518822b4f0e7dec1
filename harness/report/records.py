"""The files that runs keep as artifacts in MLflow: accuracies of every client, logs of every round."""

import sys
from collections.abc import Iterator, Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pandas as pd

from fedprompt.harness.measuring.evaluation import LOCAL
from fedprompt.harness.recording.store import first_line, public

if TYPE_CHECKING:
    from mlflow.entities import Run

RECORD_COLUMNS = (
    *("round", "client", "domain", "correct", "total", "participated", "unseen", "samples", "policy"),
    *("test_set", "partition"),
)
ROUND_COLUMNS = ("round", "cohort", "loss", "floats_down", "floats_up", "bytes_down", "bytes_up")


def run_records(uri: str, runs: Mapping[str, "Run"]) -> dict[str, pd.DataFrame]:
    """One row per evaluated round and client of each run, by the run's key; unreadable files are left out."""
    return {key: with_test_set(frame) for key, frame in _files(uri, runs, "records.csv", {"partition": str})}


def with_test_set(records: pd.DataFrame) -> pd.DataFrame:
    """Records from before there were several test sets get the name of the only one."""
    return records if "test_set" in records else records.assign(test_set=LOCAL)


def run_rounds(uri: str, runs: Mapping[str, "Run"]) -> dict[str, pd.DataFrame]:
    """One row per round of each run, diagnostics included, by the run's key; unreadable files are left out."""
    return dict(_files(uri, runs, "rounds.csv", {"cohort": str}))


def _files(
    uri: str, runs: Mapping[str, "Run"], name: str, types: Mapping[str, type]
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Unreadable files cost one warning for all of them: Average and Worst Local do not need them."""
    from mlflow.artifacts import download_artifacts

    unread = []
    with TemporaryDirectory() as scratch:
        for key, run in runs.items():
            # By location, because a client that is given the run's id looks the run up again; without a destination
            # MLflow opens a local file where it lies.
            location = f"{run.info.artifact_uri}/{name}"
            destination = None if urlsplit(location).scheme in ("", "file") else scratch
            try:
                file = download_artifacts(artifact_uri=location, dst_path=destination, tracking_uri=uri)
                yield key, pd.read_csv(file, dtype=dict(types))
            except Exception as error:  # whatever the artifact store raises, or a damaged file
                unread.append(first_line(error))
    if unread:
        print(
            f"warning: {name} of {len(unread)} runs cannot be read from {public(uri)} ({public(uri, unread[0])}); "
            "figures and paired differences leave them out.",
            file=sys.stderr,
        )
