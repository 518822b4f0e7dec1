"""Published runs: a report with all records behind it, small enough to commit.

cells.jsonl.gz    every finished cell: its hash, summary (with partition hash, data checksum, environment), rounds.csv
records.csv.gz    every record of every finished cell
scores/           every finished cell's scores.gz as its run wrote it, named by the cell's hash; older folders have none
partitions/       who has what: one file per partition, named by its hash
suite.toml        the suite; tuned.toml the values it ran with
cells.csv, tables.csv, report.md    as `fedprompt report` writes them, without figures
README.md         what is missing, if anything is; versions; the commands that make it

`restore` makes run folders of them again, `recorded_in` what reports are made from; `against` compares your runs with
them.
"""

import gzip
import hashlib
import io
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedprompt.core.errors import UserError
from fedprompt.core.files import write_atomic
from fedprompt.harness.measuring.score_frame import scores_frame
from fedprompt.harness.report.collect import PLACE, Recorded, place_files
from fedprompt.harness.report.compose import compose_report
from fedprompt.harness.report.numbers import csv_text, numbers_frame
from fedprompt.harness.report.records import with_test_set
from fedprompt.harness.report.scores import check_scores, further_measures, measured_records
from fedprompt.harness.report.writers import markdown
from fedprompt.harness.running.cell import Cell, cell_from_json
from fedprompt.harness.running.folder import LockedError, finish, is_done, open_folder, run_folder
from fedprompt.harness.running.journal import SCORES
from fedprompt.harness.running.suite import Suite
from fedprompt.harness.running.suite_file import load_suite, suite_path
from fedprompt.harness.tuning.search import study_keys
from fedprompt.harness.tuning.tuned import Tuned, read_tuned, tuned_choices, tuning_notes, write_tuned

CELLS, RECORDS, PARTITIONS, SCORES_FOLDER = "cells.jsonl.gz", "records.csv.gz", "partitions", "scores"
TEXTS = ("reason", "code", "commit", "partition_hash", "data_checksum", "other_code", "cell")  # columns of cells.csv
PACKAGES = ("fedprompt-bench", "torch", "timm", "numpy", "pillow")


def publish(suite: Suite, out: Path, folder: Path) -> str:
    """Write the report and all finished runs of a suite to ``folder``; returns what is missing, in one sentence."""
    report, cells = out / "report" / suite.name, suite.cells()
    finished = [cell for cell in cells if is_done(run_folder(out, cell))]
    if not finished:
        raise UserError(f"no cell of suite {suite.name!r} is finished in {out}; run: {suite.command('bench')}")
    _check_nothing_is_lost({cell.hash: cell for cell in cells}, finished, folder, suite)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (PARTITIONS, SCORES_FOLDER):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir()
    lines = [json.dumps(_described(run_folder(out, cell), cell, folder), sort_keys=True) for cell in finished]
    write_atomic(folder / CELLS, _packed("\n".join(lines) + "\n"))
    records = pd.concat([_records(out, cell) for cell in finished], ignore_index=True)
    write_atomic(folder / RECORDS, _packed(records.to_csv(index=False, lineterminator="\n")))
    write_atomic(folder / "cells.csv", (report / "cells.csv").read_bytes())
    write_atomic(folder / "suite.toml", suite_path(suite.file or suite.name).read_bytes())
    if suite.tuned:
        write_tuned(folder / "tuned.toml", [choice.entry for choice in tuned_choices(suite, out)])
    write_texts(recorded_in(folder, suite), folder)
    missing = _missing(cells, finished)
    write_atomic(folder / "README.md", _readme(suite, len(finished), missing).encode())
    return missing


def _check_nothing_is_lost(wanted: Mapping[str, Cell], finished: Sequence[Cell], folder: Path, suite: Suite) -> None:
    if not (folder / CELLS).exists():
        return
    lost = (published_cells(folder).keys() & wanted.keys()) - {cell.hash for cell in finished}
    if lost:
        raise UserError(
            f"{folder} has {len(lost)} finished cells that are not finished here, such as {wanted[min(lost)].label}; "
            f"take them with: {suite.command('bench')} --resume-from {folder}"
        )


def _missing(cells: Sequence[Cell], finished: Sequence[Cell]) -> str:
    """How many cells are not finished, by method; empty if none."""
    hashes = {cell.hash for cell in finished}
    by_method = Counter(cell.method for cell in cells if cell.hash not in hashes)
    if not by_method:
        return ""
    listed = ", ".join(f"{method} {count}" for method, count in by_method.items())
    return f"Incomplete: {by_method.total()} of {len(cells)} cells are not finished ({listed})."


def _readme(suite: Suite, finished: int, missing: str) -> str:
    """What there is, what is missing, and the commands that make it."""
    backbone, embedded = suite.backbone, {"glyph-domains", "glyph-100"}
    datasets = sorted({setting.dataset for setting in suite.settings} - embedded)
    weights = f" --weights FILE  # {backbone.weights}" if _is_own_file(suite) else ""
    data = " --data-root DATA" if datasets else ""
    words = [*(["tune"] if suite.tuned else []), "bench"]
    lines = [f"    fedprompt {word} {suite.name}{data}{weights}" for word in words]
    lines.append(f"    fedprompt report {suite.name} --publish DIR{weights}")
    if datasets:
        lines.append(f"\nDATA holds {', '.join(datasets)} (docs/data.md).")
    if weights:
        lines.append(f"\nFILE holds weights of {backbone.name}.")
    about = [f"{finished} cells.", *([missing] if missing else [])]
    packages = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    return f"# {suite.title}\n\n{' '.join(about)} Published with {packages}. Made by\n\n" + "\n".join(lines) + "\n"


def _is_own_file(suite: Suite) -> bool:
    """Whether the weights come from a file that is not part of the package."""
    return suite.backbone.weights.startswith("sha256:") and not suite.backbone.name.startswith("micro-")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _described(run: Path, cell: Cell, folder: Path) -> dict[str, object]:
    """All that the run folder has besides the records; its partition goes to its own file."""
    summary = json.loads((run / "summary.json").read_text())
    if (run / "partition.npz").exists():
        shutil.copyfile(run / "partition.npz", _partition_file(folder, summary))
    rounds = (run / "rounds.csv").read_text() if (run / "rounds.csv").exists() else ""
    line = {"hash": cell.hash, "cell": json.loads(cell.to_json()), "summary": summary, "rounds": rounds}
    if not (run / SCORES).exists():
        return line
    scores, records = (run / SCORES).read_bytes(), pd.read_csv(run / "records.csv", dtype={"partition": str})
    check_scores(scores_frame(scores, run / SCORES), with_test_set(records), run)
    write_atomic(_scores_file(folder, cell.hash), scores)
    return {**line, "scores": hashlib.sha256(scores).hexdigest()}


def _scores_file(folder: Path, key: str) -> Path:
    return folder / SCORES_FOLDER / f"{key}.gz"


def _scores(folder: Path, line: Mapping[str, Any]) -> bytes:
    """A cell's scores, which must be those that were published; empty if none were."""
    if "scores" not in line:
        return b""
    file = _scores_file(folder, line["hash"])
    scores = file.read_bytes() if file.exists() else b""
    if hashlib.sha256(scores).hexdigest() != line["scores"]:
        raise UserError(f"{file} is {'damaged' if scores else 'missing'}; take the whole published folder again.")
    return scores


def _partition_file(folder: Path, summary: Mapping[str, Any]) -> Path:
    return folder / PARTITIONS / f"{summary['partition_hash'][:16]}.npz"


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
    return {line["hash"]: cell_from_json(json.dumps(line["cell"])) for line in _lines(folder)}


def _lines(folder: Path) -> list[dict[str, Any]]:
    try:
        with gzip.open(folder / CELLS, "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{folder / CELLS} cannot be read ({error}); give a folder that was published.") from error


def published_records(folder: Path) -> pd.DataFrame:
    """Every record of every finished cell; the column `cell` has its hash."""
    return pd.read_csv(folder / RECORDS, dtype={"partition": str})


def published_suite(folder: Path) -> Suite:
    """The suite as it was run: with its tuned values and weights, and without methods that came later (`all`)."""
    suite = replace(load_suite(str(folder / "suite.toml")), name=folder.name, file="")
    suite = suite.only(list(pd.read_csv(folder / "cells.csv", usecols=["row"])["row"].unique()))
    entries = {entry.key: entry.params for entry in _published_choices(folder)}
    tuned = {key: entries[study] for key, study in study_keys(suite).items() if study in entries}
    backbone = next(iter(published_cells(folder).values())).backbone
    return replace(suite, backbone=backbone, tuned=tuned)


def published_notes(folder: Path) -> list[str]:
    """How much the tuned values of a published run can be relied on."""
    choices = _published_choices(folder)
    return tuning_notes(choices) if choices else []


def _published_choices(folder: Path) -> list[Tuned]:
    return read_tuned(folder / "tuned.toml") if (folder / "tuned.toml").exists() else []


def recorded_in(folder: Path, suite: Suite | None = None) -> Recorded:
    """What a published run was reported from, without MLflow; ``suite`` is its suite, by default as published."""
    suite = suite or published_suite(folder)
    lines, cells = _lines(folder), published_cells(folder)
    results = pd.read_csv(folder / "cells.csv", dtype=dict.fromkeys(TEXTS, str)).fillna(dict.fromkeys(TEXTS, ""))
    planned = suite.planned()
    if [(entry.row.key, entry.policy, entry.cell.seed) for entry in planned] != list(
        results[["row", "policy", "seed"]].itertuples(index=False, name=None)
    ):
        raise UserError(f"{folder / 'cells.csv'} does not list the entries of its suite; publish the run again.")
    results.insert(PLACE.index("column"), "column", [suite.settings.index(entry.setting) for entry in planned])
    planned = tuple(
        entry._replace(cell=cells.get(key, entry.cell)) for entry, key in zip(planned, results["cell"], strict=True)
    )
    by_cell = with_test_set(published_records(folder)).groupby("cell", sort=False)
    records = {str(key): frame.drop(columns="cell") for key, frame in by_cell}
    if names := further_measures(suite):
        scores = ((line["hash"], scores_frame(content, folder)) for line in lines if (content := _scores(folder, line)))
        records |= measured_records(records, scores, cells, names)
    rounds = {line["hash"]: pd.read_csv(io.StringIO(line["rounds"]), dtype={"cohort": str}) for line in lines}
    return place_files(suite, planned, results, records, rounds)


def write_texts(recorded: Recorded, folder: Path, place: Path | None = None) -> None:
    """Write tables.csv and report.md of the published run ``folder`` to ``place``, in the words of the present code."""
    place = place or folder
    document, summary = compose_report(recorded, folder, tuning_notes=published_notes(folder))
    write_atomic(place / "tables.csv", csv_text(numbers_frame(recorded.suite, summary.numbers)).encode())
    write_atomic(place / "report.md", markdown.render(document, place).encode())


class Restored(NamedTuple):
    """How many published cells were taken."""

    taken: int
    other: int  # published cells that are none of those wanted: of other code, or with other values


def restore(folder: Path, cells: Iterable[Cell], out: Path) -> Restored:
    """Make finished run folders of the published cells among ``cells``, unless ``out`` has them already.

    A cell's hash covers the code that computes it, so what other code has computed is not taken; nor are scores that
    do not say what the records say.
    """
    wanted = {cell.hash: cell for cell in cells}
    lines = {line["hash"]: line for line in _lines(folder)}
    taken = [key for key in lines.keys() & wanted.keys() if "summary" in lines[key]]
    taken = [key for key in taken if not is_done(run_folder(out, wanted[key]))]
    records = published_records(folder)
    parts = {str(key): part for key, part in records[records["cell"].isin(taken)].groupby("cell")}
    count = 0
    for key in taken:
        run, summary = run_folder(out, wanted[key]), lines[key]["summary"]
        scores = _scores(folder, lines[key])
        if scores:
            check_scores(scores_frame(scores, folder), with_test_set(parts[key].drop(columns="cell")), folder)
        try:
            with open_folder(run, wanted[key], restart=True):
                table = parts[key].drop(columns="cell").to_csv(index=False, lineterminator="\n")
                write_atomic(run / "records.csv", table.encode())
                write_atomic(run / "rounds.csv", lines[key]["rounds"].encode())
                if scores:
                    write_atomic(run / SCORES, scores)
                if _partition_file(folder, summary).exists():
                    write_atomic(run / "partition.npz", _partition_file(folder, summary).read_bytes())
                finish(run, summary)
                count += 1
        except LockedError:  # another process is at it
            continue
    return Restored(count, len(lines.keys() - wanted.keys()))
