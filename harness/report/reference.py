"""Published runs: a report with all records behind it, small enough to commit, and a comparison of your runs with it.

cells.jsonl.gz    every cell, with its hash, partition hash, data checksum and environment
records.csv.gz    every record of every cell
suite.toml        the suite; tuned.toml the values it ran with
cells.csv, tables.csv, report.md, figures/    as `fedprompt report` writes them
README.md         the commands that make it
"""

import gzip
import io
import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedprompt.harness.cells.cell import Cell, cell_from_json
from fedprompt.harness.cells.folder import is_done, run_folder
from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.cells.suite_file import suite_path
from fedprompt.harness.core.errors import UserError
from fedprompt.harness.core.files import write_atomic
from fedprompt.harness.report.against import compare_runs
from fedprompt.harness.report.collect import METRICS

CELLS, RECORDS = "cells.jsonl.gz", "records.csv.gz"
REPORT_FILES = ("cells.csv", "tables.csv", "report.md")
NAMED = ["table", "setting", "title", "policy", "metric"]
COMMANDS = (("tune", ""), ("bench", ""), ("report", " --publish DIR"))
LISTED = 20  # differences that are listed one by one


def publish(suite: Suite, out: Path, folder: Path) -> None:
    """Write the runs and the report of a finished suite to ``folder``."""
    report, cells = out / "report" / suite.name, suite.cells()
    unfinished = [cell for cell in cells if not is_done(run_folder(out, cell))]
    if unfinished:
        raise UserError(
            f"{len(unfinished)} of {len(cells)} cells are not finished in {out}, such as {unfinished[0].label}; "
            f"complete them with: fedprompt bench {suite.name}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(_described(out, cell), sort_keys=True) for cell in cells]
    write_atomic(folder / CELLS, _packed("\n".join(lines) + "\n"))
    records = pd.concat([_records(out, cell) for cell in cells], ignore_index=True)
    write_atomic(folder / RECORDS, _packed(records.to_csv(index=False, lineterminator="\n")))
    for name in REPORT_FILES:
        write_atomic(folder / name, (report / name).read_bytes())
    write_atomic(folder / "suite.toml", suite_path(suite.file or suite.name).read_bytes())
    shutil.rmtree(folder / "figures", ignore_errors=True)
    shutil.copytree(report / "figures", folder / "figures", ignore=shutil.ignore_patterns("*.pdf"))
    words = [(word, more) for word, more in COMMANDS if word != "tune" or suite.tuned]
    commands = "".join(f"    fedprompt {word} {suite.name}{more}\n" for word, more in words)
    write_atomic(folder / "README.md", f"# {suite.title}\n\n{len(cells)} cells. Made by\n\n{commands}".encode())


def _described(out: Path, cell: Cell) -> dict[str, object]:
    summary = json.loads((run_folder(out, cell) / "summary.json").read_text())
    facts = {name: summary[name] for name in ("partition_hash", "data_checksum", "environment") if name in summary}
    return {"hash": cell.hash, "cell": json.loads(cell.to_json()), **facts}


def _records(out: Path, cell: Cell) -> pd.DataFrame:
    frame = pd.read_csv(run_folder(out, cell) / "records.csv", dtype={"partition": str})
    frame.insert(0, "cell", cell.hash)
    return frame


def _packed(text: str) -> bytes:
    """The same bytes for the same text, whenever it is packed."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(text.encode())
    return buffer.getvalue()


def published_cells(folder: Path) -> dict[str, Cell]:
    """The cells of a published run, by their hash there."""
    with gzip.open(folder / CELLS, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return {line["hash"]: cell_from_json(json.dumps(line["cell"])) for line in lines}


def published_records(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / RECORDS, dtype={"partition": str})


class Verdict(NamedTuple):
    """The first line sums up; then one line per difference."""

    same: bool
    lines: tuple[str, ...]


def against(report: Path, folder: Path) -> Verdict:
    """The finished cells of a report beside those of a published one: which differ by more than their seeds do."""
    if not (folder / "cells.csv").exists():
        raise UserError(f"{folder} has no cells.csv; --against takes a folder such as results/reference/embedded.")
    table = compare_runs(*(_numbers(pd.read_csv(place / "cells.csv")) for place in (report, folder)))
    both = table.dropna(subset=["ours", "theirs"])
    if both.empty:
        raise UserError(f"no finished cell of the suite is among those of {folder}; run the suite first.")
    differing, equal = both[both["differs"]], int((both["difference"] == 0).sum())
    largest = both["difference"].abs().max()
    summary = f"{len(differing)} of {len(both)} numbers differ from" if len(differing) else "same as"
    lines = [
        f"{summary} {folder}: {len(both)} numbers compared, {equal} equal to the last digit, largest difference "
        f"{largest:.2f} points.",
        *(_difference(name, line) for name, line in differing.head(LISTED).iterrows()),
    ]
    for missing, where in ((table["ours"].isna(), "here"), (table["theirs"].isna(), "there")):
        if missing.any():
            lines.append(f"{int(missing.sum())} numbers are missing {where}.")
    return Verdict(differing.empty, tuple(lines))


def _numbers(results: pd.DataFrame) -> "pd.Series[float]":
    """Every reported accuracy of the finished cells, by place, metric and seed."""
    finished = results[results["status"] == "finished"]
    metrics = [metric for metric in METRICS if metric in finished]
    long = finished.melt([*NAMED[:-1], "seed"], metrics, "metric", "value").dropna(subset=["value"])
    return long.set_index([*NAMED, "seed"])["value"].astype(float)


def _difference(name: object, line: "pd.Series[float]") -> str:
    assert isinstance(name, tuple)
    table, setting, title, policy, metric = name
    where = f"{title}, {table}, {setting}, {policy}, {METRICS[metric]}"
    return (
        f"differs: {where}: {line['ours']:.2f} here, {line['theirs']:.2f} there "
        f"({line['difference']:+.2f} points; the seeds alone explain about {2 * line['error']:.2f})"
    )
