"""Numbers of a suite from MLflow alone: a row a planned cell, then a row a number of the tables."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from fedprompt.harness.cells.cell import Cell
from fedprompt.harness.cells.folder import FAILED, run_folder
from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.tracking.store import find_runs

METRICS = {
    "average": "Average",
    "worst_local": "Worst Local",
    "unseen_average": "Unseen Average",
    **{f"average_samples_{samples}": f"V={samples}" for samples in range(1, 11)},
}
OF_KIND = {  # what the tables of each kind print
    "heterogeneity": ("average", "worst_local"),
    "unseen": ("unseen_average",),
    "ablation": ("average",),
    "vsweep": tuple(metric for metric in METRICS if metric.startswith("average_samples_")),
}
EXCLUDE = {"average": "average_exclude", "worst_local": "worst_local_exclude"}
COSTS = ("rounds_counted", "never_sampled", "floats_down", "floats_up", "seconds_per_round")
NUMBERS = (*METRICS, *EXCLUDE.values(), *COSTS)
TAGS = {"commit": "git_commit", "partition_hash": "partition_hash", "data_checksum": "data_checksum"}
PLACE = ["table", "kind", "column", "setting", "row", "title"]  # what the seeds of one number share


def load_results(uri: str, cells: Sequence[Cell]) -> pd.DataFrame:
    """A row a cell, in order: what it is, `status` (finished, failed, missing), and its numbers if it is finished."""
    runs = find_runs(uri, cells)
    rows = []
    for cell in cells:
        run = runs.get(cell.hash)
        status = {"FINISHED": "finished", "FAILED": "failed"}.get(run.info.status, "missing") if run else "missing"
        tags = run.data.tags if run else {}
        metrics = run.data.metrics if run and status == "finished" else {}
        rows.append(
            {
                "cell": cell.hash,
                "method": cell.method,
                "dataset": cell.dataset,
                "partition": cell.partition,
                "seed": cell.seed,
                "status": status,
                "reason": tags.get("failure", "") if status == "failed" else "",
                "code": cell.code,
                **{name: tags.get(tag, "") if status == "finished" else "" for name, tag in TAGS.items()},
                **{name: metrics.get(name, float("nan")) for name in NUMBERS},
            }
        )
    return pd.DataFrame(rows)


def collect(suite: Suite, uri: str, out: Path | None = None) -> pd.DataFrame:
    """The results of a suite, each with its place in the tables.

    A failure that MLflow did not hear of is looked up in the run folders of ``out``.
    """
    planned = list(suite.planned())
    results = load_results(uri, [entry.cell for entry in planned])
    places = [
        (setting.table, setting.kind, suite.settings.index(setting), setting.label, row.key, row.title)
        for setting, row, _ in planned
    ]
    results = pd.concat([pd.DataFrame(places, columns=PLACE), results], axis=1)
    for index, (_, _, cell) in enumerate(planned):
        note = run_folder(out, cell) / FAILED if out else None
        if note and results.loc[index, "status"] == "missing" and note.exists():
            results.loc[index, ["status", "reason"]] = ["failed", json.loads(note.read_text())["reason"]]
    return results


def summarise_seeds(results: pd.DataFrame) -> pd.DataFrame:
    """A row a table, setting, row and metric: mean and sample standard deviation over seeds, in percent."""
    rows = []
    for place, cells in results.groupby(PLACE, sort=False):
        finished = cells[cells["status"] == "finished"]
        state = "finished" if len(finished) else "failed" if (cells["status"] == "failed").any() else "missing"
        first = cells.iloc[0]
        for metric in OF_KIND[first["kind"]]:
            values = finished[metric].dropna() * 100
            without = finished[EXCLUDE[metric]].dropna() * 100 if metric in EXCLUDE else values
            rows.append(
                {
                    **dict(zip(PLACE, place, strict=True)),
                    **{name: first[name] for name in ("dataset", "partition", "method")},
                    "metric": metric,
                    "mean": values.mean(),
                    "std": values.std(ddof=1),
                    "mean_exclude": without.mean(),
                    "std_exclude": without.std(ddof=1),
                    "seeds": len(finished),
                    "seeds_expected": len(cells),
                    "status": state,
                    "rounds_counted": finished["rounds_counted"].max(),
                    "bytes_up": finished["floats_up"].mean() * 4,  # one client in one round; floats of four bytes
                    "bytes_down": finished["floats_down"].mean() * 4,
                }
            )
    return pd.DataFrame(rows)


def short_commit(commit: str) -> str:
    """Twelve digits, and whether files differed."""
    return re.sub(r"^([0-9a-f]{12})[0-9a-f]*", r"\1", commit)
