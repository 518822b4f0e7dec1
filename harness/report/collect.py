"""What MLflow has of a suite, as frames.

The suite is expanded once and its runs are searched once. Everything comes from MLflow but one thing: the reason of a
failure that MLflow has not heard of is read from the run folder, where there is one.
"""

import json
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedprompt.harness.federation.policy import PAPER, POLICIES, POLICY_NAMES, is_finetuned, metric_suffix
from fedprompt.harness.federation.rounds import failure_state
from fedprompt.harness.measuring.metrics import finetuned_reading, per_client, trained_reading
from fedprompt.harness.recording.store import FoundRuns, find_runs
from fedprompt.harness.report.records import RECORD_COLUMNS, ROUND_COLUMNS, run_records, run_rounds, run_scores
from fedprompt.harness.report.scores import further_measures, measured_records
from fedprompt.harness.running.folder import failure_note, run_folder
from fedprompt.harness.running.suite import Planned, Suite

if TYPE_CHECKING:
    from mlflow.entities import Run

METRICS = {
    "average": "Average",
    "worst_local": "Worst Local",
    "unseen_average": "Unseen Average",
    "base_average": "Base",
    "novel_average": "Novel",
    "harmonic_mean": "Harmonic Mean",
    "target_average": "Target",
    **{f"average_samples_{samples}": f"V={samples}" for samples in range(1, 11)},
}
POLICY_HEADINGS = {policy: name[0].upper() + name[1:] for policy, name in POLICY_NAMES.items()}
POLICY_HEADINGS[PAPER] = "Head as in the paper"
OF_KIND = {  # what the tables of each kind print
    "heterogeneity": ("average", "worst_local"),
    "unseen": ("unseen_average",),
    "ablation": ("average",),
    "novel": ("average", "base_average", "novel_average", "harmonic_mean"),
    "target": ("target_average", "average"),
    "vsweep": tuple(metric for metric in METRICS if metric.startswith("average_samples_")),
}
EXCLUDE = {"average": "average_exclude", "worst_local": "worst_local_exclude"}
COSTS = ("rounds_counted", "never_sampled", "floats_down", "floats_up", "seconds_per_round")
NUMBERS = (*METRICS, *EXCLUDE.values(), "drift", "moving", *COSTS)
TAGS = {"commit": "git_commit", "partition_hash": "partition_hash", "data_checksum": "data_checksum"}


@dataclass(frozen=True)
class Place:
    """Where an entry stands in the tables: what the seeds of one number share."""

    table: str
    kind: str
    column: int  # number of the setting, because labels may repeat
    setting: str  # its label
    row: str  # key
    title: str
    policy: str  # of the head, as the setting lists it, maybe `paper`
    reading: str  # the policy that it stands for


PLACE = [field.name for field in fields(Place)]


@dataclass(frozen=True)
class Recorded:
    """A suite and what MLflow holds of its cells; every frame begins with the columns of `Place`."""

    suite: Suite
    planned: tuple[Planned, ...]
    results: pd.DataFrame  # one row per planned entry: status (finished, diverged, failed, missing) and its numbers
    records: pd.DataFrame  # one row per finished entry, evaluated round and client: counts and accuracy in its reading
    rounds: pd.DataFrame  # one row per finished entry and round: the cohort's loss and payload, diagnostics

    def under(self, policy: str) -> "Recorded":
        """Only the entries of one policy, as it is listed."""
        planned = tuple(entry for entry in self.planned if entry.policy == policy)
        frames = (frame[frame["policy"] == policy] for frame in (self.results, self.records, self.rounds))
        return Recorded(self.suite, planned, *frames)


def collect(
    suite: Suite, uri: str, out: Path | None = None, accept_code: bool = False, suite_runs: FoundRuns | None = None
) -> Recorded:
    """Read the runs of ``suite``; failures that MLflow has not heard of are looked up in the run folders of ``out``.

    Runs of other code than the present count only with ``accept_code``. ``suite_runs`` are the suite's runs, if known.
    """
    planned = suite.planned()
    hashes = [entry.cell.hash for entry in planned]
    cells = dict(zip(hashes, (entry.cell for entry in planned), strict=True))
    suite_runs = suite_runs or find_runs(uri, cells.values())
    runs = {**suite_runs.current, **suite_runs.older} if accept_code else suite_runs.current
    finished = {key: run for key, run in runs.items() if run.info.status == "FINISHED"}
    places = _places(suite, planned)
    untuned = {id(entry) for entry in suite.untuned()}
    rows = [
        {
            **_result(key, entry, runs.get(key), out),
            "untuned": id(entry) in untuned,
            "other_code": suite_runs.older[key].data.tags.get("code", "") if key in suite_runs.older else "",
        }
        for key, entry in zip(hashes, planned, strict=True)
    ]
    results = pd.concat([pd.DataFrame(places, columns=PLACE), pd.DataFrame(rows)], axis=1)
    records = run_records(uri, finished)
    if names := further_measures(suite):
        records |= measured_records(records, run_scores(uri, finished), cells, names)
    return place_files(suite, planned, results, records, run_rounds(uri, finished))


def place_files(
    suite: Suite,
    planned: tuple[Planned, ...],
    results: pd.DataFrame,
    records: Mapping[str, pd.DataFrame],
    rounds: Mapping[str, pd.DataFrame],
) -> Recorded:
    """The results with the records and rounds of their cells (by hash), one copy for each entry that shows a cell."""
    places = results.set_index(PLACE).index
    # Seeds that did not diverge say nothing about those that did.
    heads = results[~places.isin(places[results["status"] == "diverged"])][[*PLACE, "cell", "seed"]]
    by_reading = {(key, reading): frame for key, frame in rounds.items() for reading in POLICIES}
    columns = (*RECORD_COLUMNS, "accuracy", *further_measures(suite))
    placed_records = _placed(heads, _readings(records), columns)
    return Recorded(suite, planned, results, placed_records, _placed(heads, by_reading, ROUND_COLUMNS))


def _readings(files: Mapping[str, pd.DataFrame]) -> dict[tuple[str, str], pd.DataFrame]:
    """Records by cell and reading, with the domains of each client added up.

    Files with the same columns are added up together, because a `groupby` for each of hundreds takes seconds.
    """
    alike: dict[Hashable, dict[str, pd.DataFrame]] = {}
    for key, records in files.items():
        alike.setdefault(tuple(records.dtypes.items()), {})[key] = records
    frames: dict[tuple[str, str], pd.DataFrame] = {}
    for group in alike.values():
        records = pd.concat(group, names=["cell"]).reset_index("cell").reset_index(drop=True)
        trained, finetuned = per_client(trained_reading(records)), per_client(finetuned_reading(records))
        for reading in POLICIES:
            counted = finetuned if is_finetuned(reading) else trained
            rows = counted.groupby("cell", sort=False).indices
            frames |= {(key, reading): counted.iloc[rows.get(key, [])] for key in group}
    return frames


def _places(suite: Suite, planned: Sequence[Planned]) -> list[Place]:
    columns = {id(setting): suite.settings.index(setting) for setting in suite.settings}
    return [
        Place(s.table, s.kind, columns[id(s)], s.label, row.key, row.title, policy, s.reading(row, policy))
        for s, row, policy, _ in planned
    ]


def _result(key: str, entry: Planned, run: "Run | None", out: Path | None) -> dict[str, Any]:
    cell = entry.cell
    ended = run.info.status if run else ""
    tags, metrics = (run.data.tags, run.data.metrics) if run and ended == "FINISHED" else ({}, {})
    reason = run.data.tags.get("failure", "no reason") if run and ended == "FAILED" else ""
    if out and ended not in ("FINISHED", "FAILED"):
        reason = failure_note(run_folder(out, cell))
    status = "finished" if ended == "FINISHED" else failure_state(reason) if reason else "missing"
    return {
        "cell": key,
        "method": cell.method,
        "dataset": cell.dataset,
        "partition": cell.partition,
        "seed": cell.seed,
        "status": status,
        "reason": reason,
        "backbone": cell.backbone.name,
        "weights": cell.backbone.weights,
        "params": json.dumps(cell.params, sort_keys=True),
        "code": tags.get("code", cell.code),
        **{name: tags.get(tag, "") for name, tag in TAGS.items()},
        **{name: metrics.get(_metric(name, entry.reading), float("nan")) for name in NUMBERS},
    }


def _metric(name: str, reading: str) -> str:
    """What a number is called in MLflow: costs are of the training, all others of one reading."""
    return name if name in COSTS else name + metric_suffix(reading)


def _placed(heads: pd.DataFrame, files: Mapping[tuple[str, str], pd.DataFrame], columns: Sequence[str]) -> pd.DataFrame:
    """The files of all entries below one another, led by the entries' heads; a cell shown twice is in it twice.

    ``files`` are by cell and reading.
    """
    keys = list(zip(heads["cell"], heads["reading"], strict=True))
    frames = [files[key] for key in keys if key in files]
    if not frames:
        return pd.DataFrame(columns=list(dict.fromkeys([*heads, *columns])))
    repeated = np.repeat(np.arange(len(frames)), [len(frame) for frame in frames])
    lead = heads[[key in files for key in keys]].iloc[repeated].reset_index(drop=True)
    body = pd.concat(frames, ignore_index=True).drop(columns=lead.columns, errors="ignore")  # records name the seed too
    return pd.concat([lead, body], axis=1)


def short_commit(commit: str) -> str:
    """Twelve digits, and `-dirty` where files differed from the commit."""
    return re.sub(r"^([0-9a-f]{12})[0-9a-f]*", r"\1", commit)
