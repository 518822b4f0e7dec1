"""Read a published run that anybody may have written: nothing in it is believed that its records do not say.

Files are plain and bear the names that publishing gives them. A line of `cells.jsonl.gz` counts only if its hash is
that of its cell, and, with `verify_runs`, if its summary is what its records and rounds add up to.
"""

import io
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pandas as pd

from fedprompt.core.errors import UserError
from fedprompt.core.fields import build
from fedprompt.core.untrusted import read_bytes, read_json_lines, require_inside
from fedprompt.datasets import Partition
from fedprompt.harness.federation.policy import metric_suffix
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.measuring.metrics import summarise
from fedprompt.harness.report.collect import COSTS, NUMBERS, PLACE
from fedprompt.harness.report.records import ROUND_COLUMNS, with_test_set
from fedprompt.harness.running.cell import Cell, cell_from_json

CELLS, RECORDS, RESULTS = "cells.jsonl.gz", "records.csv.gz", "cells.csv"
PARTITIONS, SCORES_FOLDER = "partitions", "scores"
TEXTS = ("reason", "code", "commit", "partition_hash", "data_checksum", "other_code", "cell")  # columns of cells.csv
LINE = {"hash": str, "cell": dict, "summary": dict, "rounds": str}
TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("cell", "domain", "policy", "test_set", "partition"), str),
    **dict.fromkeys(("seed", "round", "client", "correct", "total", "samples"), "int64"),
    **dict.fromkeys(("participated", "unseen"), bool),
}  # of records
LATER = {"test_set"}  # columns that the first published records did not have
FEW = 100  # columns of cells.csv
GIVEN = {"seconds_per_round", "partition_hash", "data_checksum", "environment"}  # what records cannot tell
DIGITS = 1e-9  # relative; adding up in another order shows below


def published_file(folder: Path, name: str) -> Path:
    """The path of a file that publishing writes; a link is refused, wherever it leads."""
    path = folder / name
    if path.is_symlink():
        raise UserError(f"{path} is a link; published runs have plain files only.")
    require_inside(path, folder)
    return path


def published_lines(folder: Path) -> list[dict[str, Any]]:
    """One table per finished cell, with the keys of ``LINE``; its cell is known to have its hash."""
    path = published_file(folder, CELLS)
    lines = read_json_lines(path, within=folder)
    for number, line in enumerate(lines, 1):
        if not isinstance(line, dict) or any(not isinstance(line.get(key), kind) for key, kind in LINE.items()):
            raise UserError(f"{path}, line {number} lacks one of {', '.join(LINE)}; give a folder that was published.")
        if _cell(line, f"{path}, line {number}").hash != line["hash"]:
            raise UserError(f"{path}, line {number}: {line['hash']} is not the hash of its cell.")
    if len({line["hash"] for line in lines}) < len(lines):
        raise UserError(f"{path} lists a cell twice.")
    return lines


def published_cells(folder: Path) -> dict[str, Cell]:
    """The cells of a published run, by their hash there."""
    return {line["hash"]: _cell(line, folder / CELLS) for line in published_lines(folder)}


def _cell(line: Mapping[str, Any], where: object) -> Cell:
    """The hash does not say that values have the right types: whoever changes them can compute it again."""
    try:
        cell = cell_from_json(json.dumps(line["cell"]))
        texts = (cell.method, cell.dataset, cell.partition, cell.code, cell.backbone.name, cell.backbone.weights)
        if not all(isinstance(text, str) for text in texts) or not isinstance(cell.params, dict):
            raise TypeError("a name is not a text")
        if not (type(cell.seed) is int and type(cell.backbone.image_size) is int):
            raise TypeError("a size or seed is not a whole number")
        build(Protocol, line["cell"]["protocol"], "protocol")
    except Exception as error:  # whatever missing keys and odd values lead to
        raise UserError(f"{where}: this is not a cell ({type(error).__name__}: {error}).") from error
    return cell


def published_records(folder: Path) -> pd.DataFrame:
    """Every record of every finished cell; the column `cell` has its hash."""
    path = published_file(folder, RECORDS)
    records = _read_csv(path, folder, set(TYPES), LATER, TYPES)
    counts = records[["client", "correct", "samples"]]
    if (counts < 0).any(axis=None) or (records["correct"] > records["total"]).any():
        raise UserError(f"{path} has counts that cannot be, such as more correct predictions than images.")
    return records


def published_results(folder: Path) -> pd.DataFrame:
    """The entries of `cells.csv`, with numbers where numbers are due."""
    path = published_file(folder, RESULTS)
    results = _read_csv(path, folder, None, set(), dict.fromkeys(TEXTS, str))
    needed = {*PLACE, *TEXTS, "seed", "status"} - {"column"}
    if not needed <= set(results):
        raise UserError(f"{path} lacks {', '.join(sorted(needed - set(results)))}; publish the run again.")
    for name in {*NUMBERS, "seed"} & set(results):
        if results[name].dtype.kind not in "if":
            raise UserError(f"{path}: {name} has values that are no numbers.")
    return results.fillna(dict.fromkeys(TEXTS, ""))


def _read_csv(
    path: Path, folder: Path, columns: set[str] | None, later: set[str], types: Mapping[str, Any]
) -> pd.DataFrame:
    """A table with the given ``columns``, of which those in ``later`` may be missing; any if None."""
    content = read_bytes(path, within=folder)
    header = content.split(b"\n", 1)[0].count(b",") + 1  # before pandas makes an array of each
    try:
        if header > FEW:
            raise ValueError(f"it has {header:,} columns")
        frame = pd.read_csv(io.BytesIO(content), dtype={**types})
    except Exception as error:  # pandas raises a dozen kinds
        first = (str(error).splitlines() or [""])[0]
        raise UserError(f"{path} cannot be read: {first or type(error).__name__}") from error
    if not isinstance(frame.index, pd.RangeIndex):
        raise UserError(f"{path} cannot be read: it has lines longer than its header")
    if columns is not None and not columns - later <= set(frame) <= columns:
        raise UserError(f"{path} has not the columns of records; give a folder that was published.")
    return frame


# -- what the records say ---------------------------------------------------------------------------------------------


def verify_runs(folder: Path, lines: Iterable[Mapping[str, Any]], records: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Refuse any of ``lines`` whose summary its records and rounds do not add up to; returns the records by cell."""
    parts = {str(key): part.drop(columns="cell") for key, part in records.groupby("cell", sort=False)}
    empty = records.iloc[:0].drop(columns="cell")
    lines = list(lines)
    for line in lines:
        _verify_run(folder, line, parts.get(line["hash"], empty))
    return {line["hash"]: parts[line["hash"]] for line in lines}


def _verify_run(folder: Path, line: Mapping[str, Any], records: pd.DataFrame) -> None:
    cell, summary = _cell(line, folder), line["summary"]
    where = f"{folder}: {cell.label} ({cell.hash})"
    try:
        expected: dict[str, float] = {
            **summarise(with_test_set(records), cell.protocol.rounds, cell.protocol.last, cell.protocol.never_sampled),
            **_sent(line["rounds"], cell.protocol.rounds),
        }
    except Exception as error:  # of tables that no run has written
        raise UserError(f"{where}: its records are not those of a whole run ({error}).") from error
    if summary.keys() != expected.keys() | GIVEN:
        differing = sorted(summary.keys() ^ (expected.keys() | GIVEN))
        _refuse(where, f"its summary lacks, or should not have, {', '.join(differing)}")
    for name, value in expected.items():
        if not _equal(summary[name], value):
            _refuse(where, f"its summary says {name} = {summary[name]!r}, its records say {value:.6g}")
    seconds, environment = summary["seconds_per_round"], summary["environment"]
    if not (_is_number(seconds) and math.isfinite(seconds) and seconds >= 0):
        _refuse(where, f"seconds_per_round = {seconds!r} is no time")
    if not (isinstance(environment, dict) and all(isinstance(value, str) for value in environment.values())):
        _refuse(where, "its environment is not a table of texts")
    _verify_hash(where, "partition_hash", summary["partition_hash"], "[0-9a-f]{16,64}")
    _verify_hash(where, "data_checksum", summary["data_checksum"], r"\w{1,64}")
    if set(records["partition"]) != {summary["partition_hash"][:16]} or set(records["seed"]) != {cell.seed}:
        _refuse(where, "its records name another partition or seed")
    published_partition(folder, summary)


def _sent(text: str, rounds: int) -> dict[str, float]:
    """Floats per client of the last round; every round must be there once, with numbers."""
    logs = pd.read_csv(io.StringIO(text), dtype={"cohort": str})
    if not set(ROUND_COLUMNS) <= set(logs) or list(logs["round"]) != list(range(1, rounds + 1)):
        raise ValueError(f"its log has not the rounds 1 to {rounds}")
    if any(logs[name].dtype.kind not in "if" for name in logs if name != "cohort"):
        raise ValueError("its log has values that are no numbers")
    last = logs.iloc[-1]
    clients = [int(client) for client in str(last["cohort"]).split()]
    return {name: float(last[name]) / len(clients) for name in ("floats_down", "floats_up")}


def verify_results(folder: Path, results: pd.DataFrame, lines: Iterable[Mapping[str, Any]]) -> None:
    """Refuse a `cells.csv` with a number that is not in its cell's summary; those must have been verified."""
    summaries = {line["hash"]: line["summary"] for line in lines}
    for row in results[results["status"] == "finished"].to_dict("records"):
        summary = summaries.get(row["cell"])
        if summary is None:
            _refuse(f"{folder / RESULTS}", f"{row['cell']} is finished there, but not in {CELLS}")
        for name in NUMBERS:
            suffix = "" if name in COSTS else metric_suffix(row["reading"])
            value, known = row.get(name, math.nan), summary.get(name + suffix, math.nan)
            if not _equal(value, known):
                _refuse(f"{folder / RESULTS}", f"{row['cell']} has {name} = {value!r}, its records say {known!r}")


def published_partition(folder: Path, summary: Mapping[str, Any]) -> Partition | None:
    """The partition that a verified summary names; None if it was not published."""
    path = published_file(folder, partition_name(summary))
    if not path.exists():
        return None
    partition = Partition.load(path)
    if not partition.hash.startswith(summary["partition_hash"]):
        raise UserError(f"{path} is not the partition of hash {summary['partition_hash']}.")
    return partition


def partition_name(summary: Mapping[str, Any]) -> str:
    return f"{PARTITIONS}/{summary['partition_hash'][:16]}.npz"


def foreign_file(folder: Path, names: Collection[str]) -> str:
    """The first entry of ``folder`` that publishing did not write: not a plain file called one of ``names``."""
    for path in sorted(folder.iterdir()):
        if path.name in (PARTITIONS, SCORES_FOLDER) and path.is_dir() and not path.is_symlink():
            foreign = [p.name for p in sorted(path.iterdir()) if not _is_named_by_hash(p)]
            if foreign:
                return f"{path.name}/{foreign[0]}"
        elif path.name not in names or path.is_symlink() or not path.is_file():
            return path.name
    return ""


def _is_named_by_hash(path: Path) -> bool:
    return bool(re.fullmatch(r"[0-9a-f]{16}\.(npz|gz)", path.name)) and path.is_file() and not path.is_symlink()


def _verify_hash(where: str, name: str, value: object, pattern: str) -> None:
    if not (isinstance(value, str) and re.fullmatch(pattern, value)):
        _refuse(where, f"{name} = {value!r} is no hash")


def _equal(value: object, expected: float) -> bool:
    if not _is_number(value):
        return False
    return (value != value and expected != expected) or abs(value - expected) <= DIGITS * abs(expected)  # type: ignore


def _is_number(value: Any) -> bool:
    """Whole numbers of JSON have any length; those that are no float are none here."""
    return isinstance(value, int | float) and not isinstance(value, bool) and (value != value or abs(value) < 1e300)


def _refuse(where: str, why: str) -> NoReturn:
    raise UserError(f"{where}: {why}; it was changed after the run, or damaged.")
