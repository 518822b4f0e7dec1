"""The files that runs keep as artifacts in MLflow: accuracies of every client, logs of every round, scores."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pandas as pd

from fedprompt.harness.measuring.evaluation import LOCAL
from fedprompt.harness.measuring.score_frame import scores_frame
from fedprompt.harness.recording.store import first_line, public
from fedprompt.harness.running.journal import SCORES

if TYPE_CHECKING:
    from mlflow.entities import Run

RECORD_COLUMNS = (
    *("round", "client", "domain", "correct", "total", "participated", "unseen", "samples", "policy"),
    *("test_set", "partition"),
)
ROUND_COLUMNS = ("round", "cohort", "loss", "floats_down", "floats_up", "bytes_down", "bytes_up")


def run_records(uri: str, runs: Mapping[str, "Run"]) -> dict[str, pd.DataFrame]:
    """One row per evaluated round and client of each run, by the run's key; unreadable files are left out."""

    def read(file: str) -> pd.DataFrame:
        return with_test_set(pd.read_csv(file, dtype={"partition": str}))

    return dict(_files(uri, runs, "records.csv", read, "figures and paired differences"))


def with_test_set(records: pd.DataFrame) -> pd.DataFrame:
    """Records from before there were several test sets get the name of the only one."""
    return records if "test_set" in records else records.assign(test_set=LOCAL)


def run_rounds(uri: str, runs: Mapping[str, "Run"]) -> dict[str, pd.DataFrame]:
    """One row per round of each run, diagnostics included, by the run's key; unreadable files are left out."""

    def read(file: str) -> pd.DataFrame:
        return pd.read_csv(file, dtype={"cohort": str})

    return dict(_files(uri, runs, "rounds.csv", read, "figures and paired differences"))


def run_scores(uri: str, runs: Mapping[str, "Run"]) -> Iterator[tuple[str, pd.DataFrame]]:
    """One row per reported round, reading, client and image of each run, with the run's key; one run at a time."""

    def read(file: str) -> pd.DataFrame:
        return scores_frame(Path(file).read_bytes(), file)

    return _files(uri, runs, SCORES, read, "tables of other measures than accuracy")


def _files(
    uri: str, runs: Mapping[str, "Run"], name: str, read: Callable[[str], pd.DataFrame], needing: str
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Unreadable files cost one warning for all of them: Average and Worst Local do not need them.

    ``needing`` says what does.
    """
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
                frame = read(file)
            except Exception as error:  # whatever the artifact store raises, or a damaged file
                unread.append(first_line(error))
                continue
            yield key, frame
    if unread:
        print(
            f"warning: {name} of {len(unread)} runs cannot be read from {public(uri)} ({public(uri, unread[0])}); "
            f"{needing} leave them out.",
            file=sys.stderr,
        )
