"""Published runs: a report with all records behind it, small enough to commit.

cells.jsonl.gz    every finished cell: its hash, summary (with partition hash, data checksum, environment), rounds.csv
records.csv.gz    every record of every finished cell
scores/           every finished cell's scores.gz as its run wrote it, named by the cell's hash; older folders have none
partitions/       who has what: one file per partition, named by its hash
suite.toml        the suite; tuned.toml the values it ran with
cells.csv, tables.csv, report.md    as `fedprompt report` writes them, without figures
README.md         what is missing, if anything is; versions; the commands that make it

`restore` makes run folders of them again, `recorded_in` what reports are made from; `against` compares your runs with
them. A published run may come from anybody: it is read through `verified.py` only.
"""

import gzip
import hashlib
import io
import json
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pandas as pd

from fedprompt.core.errors import UserError
from fedprompt.core.files import write_atomic
from fedprompt.core.untrusted import open_plain
from fedprompt.harness.measuring.score_frame import scores_frame
from fedprompt.harness.report.collect import NUMBERS, PLACE, Recorded, place_files
from fedprompt.harness.report.compose import compose_report
from fedprompt.harness.report.numbers import csv_text, numbers_frame
from fedprompt.harness.report.records import with_test_set
from fedprompt.harness.report.scores import check_scores, further_measures, measured_records
from fedprompt.harness.report.verified import (
    CELLS,
    PARTITIONS,
    RECORDS,
    RESULTS,
    SCORES_FOLDER,
    foreign_file,
    partition_name,
    published_cells,
    published_file,
    published_lines,
    published_partition,
    published_records,
    published_results,
    verify_results,
    verify_runs,
)
from fedprompt.harness.report.writers import markdown
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.folder import (
    REMEDY,
    LockedError,
    damaged_file,
    finish,
    is_done,
    open_folder,
    run_folder,
)
from fedprompt.harness.running.journal import SCORES
from fedprompt.harness.running.suite import Suite
from fedprompt.harness.running.suite_file import load_suite, suite_path
from fedprompt.harness.tuning.search import study_keys
from fedprompt.harness.tuning.tuned import Tuned, read_tuned, tuned_choices, tuning_notes, write_tuned

SUITE, TUNED, TABLES, REPORT, README = "suite.toml", "tuned.toml", "tables.csv", "report.md", "README.md"
FILES = (
    CELLS,
    RECORDS,
    RESULTS,
    SUITE,
    TUNED,
    TABLES,
    REPORT,
    README,
)  # what publishing writes, with partitions
MOST_SCORES = 2**28  # bytes that are read of a cell's scores
PACKAGES = ("fedprompt-bench", "torch", "timm", "numpy", "pillow")


def publish(suite: Suite, out: Path, folder: Path) -> str:
    """Write the report and all finished runs of a suite to ``folder``; returns what is missing, in one sentence.

    The folder is new, empty, or one that was published; it is replaced as a whole once everything is written and every
    summary is what its records say.
    """
    report, cells = out / "report" / suite.name, suite.cells()
    finished = [cell for cell in cells if is_done(run_folder(out, cell))]
    if not finished:
        raise UserError(f"no cell of suite {suite.name!r} is finished in {out}; run: {suite.command('bench')}")
    for cell in finished:
        if damaged := damaged_file(run_folder(out, cell)):
            raise UserError(f"{run_folder(out, cell) / damaged} is not what the finished run wrote; {REMEDY}")
    _check_replaceable(folder)
    _check_nothing_is_lost({cell.hash: cell for cell in cells}, finished, folder, suite)
    missing = _missing(cells, finished)
    with _replacement(folder) as new:
        _write_runs(finished, out, new)
        write_atomic(new / RESULTS, _results_of(finished, report / RESULTS))
        write_atomic(new / SUITE, suite_path(suite.file or suite.name).read_bytes())
        if suite.tuned:
            write_tuned(new / TUNED, [choice.entry for choice in tuned_choices(suite, out)])
        verify(new)
        write_texts(recorded_in(new, suite), new)
        write_atomic(new / README, _readme(suite, len(finished), missing).encode())
    return missing


def _write_runs(finished: Sequence[Cell], out: Path, folder: Path) -> None:
    for name in (PARTITIONS, SCORES_FOLDER):
        (folder / name).mkdir()
    lines = [json.dumps(_described(run_folder(out, cell), cell, folder), sort_keys=True) for cell in finished]
    write_atomic(folder / CELLS, _packed("\n".join(lines) + "\n"))
    records = pd.concat([_records(out, cell) for cell in finished], ignore_index=True)
    write_atomic(folder / RECORDS, _packed(records.to_csv(index=False, lineterminator="\n")))


def _results_of(finished: Sequence[Cell], path: Path) -> bytes:
    """`cells.csv` of the report; what MLflow has of cells that are not published is missing there."""
    results = pd.read_csv(path, dtype=str, keep_default_na=False)
    unbacked = (results["status"] == "finished") & ~results["cell"].isin([cell.hash for cell in finished])
    if not unbacked.any():
        return path.read_bytes()
    results.loc[unbacked, [name for name in NUMBERS if name in results]] = ""
    results.loc[unbacked, "status"] = "missing"
    return csv_text(results).encode()


def _check_replaceable(folder: Path) -> None:
    """What is published replaces the whole folder, so nothing else may be in it."""
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise UserError(f"--publish {folder} is not a folder; name a new one.")
    foreign = foreign_file(folder, FILES)
    if foreign:
        raise UserError(f"--publish {folder} holds {foreign}, which was not published; name a new or empty folder.")
    if any(folder.iterdir()) and not (folder / CELLS).exists():
        raise UserError(f"--publish {folder} holds files, but no published run; name a new or empty folder.")


@contextmanager
def _replacement(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of ``folder`` when the block ends; if it fails, ``folder`` stays as it was."""
    place = folder.resolve()
    new, old = (place.with_name(f".{place.name}-{uuid.uuid4().hex}") for _ in range(2))
    try:
        new.mkdir(parents=True)
        yield new
        if place.exists():
            place.rename(old)
        new.rename(place)
    except OSError as error:
        raise UserError(f"cannot publish to {folder}: {error.strerror or error}; name another folder.") from error
    finally:
        if old.exists() and not place.exists():  # the second renaming failed
            old.rename(place)
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def verify(folder: Path) -> None:
    """Refuse a published run in which any number is not what its records say."""
    lines = published_lines(folder)
    verify_runs(folder, lines, published_records(folder))
    verify_results(folder, published_results(folder), lines)


def _check_nothing_is_lost(wanted: Mapping[str, Cell], finished: Sequence[Cell], folder: Path, suite: Suite) -> None:
    if not (folder / CELLS).exists():
        return  # nothing is published there yet
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
        shutil.copyfile(run / "partition.npz", folder / partition_name(summary))
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
    file = published_file(folder, f"{SCORES_FOLDER}/{line['hash']}.gz")
    scores = b""
    if file.exists():
        with open_plain(file) as opened:
            scores = opened.read(MOST_SCORES)
    if hashlib.sha256(scores).hexdigest() != line["scores"]:
        raise UserError(f"{file} is {'damaged' if scores else 'missing'}; take the whole published folder again.")
    return scores


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


def published_suite(folder: Path) -> Suite:
    """The suite as it was run: with its tuned values and weights, and without methods that came later (`all`)."""
    cells = published_cells(folder)
    if not cells:
        raise UserError(f"{folder / CELLS} has no cell; give a folder that was published.")
    suite = replace(load_suite(str(published_file(folder, SUITE))), name=folder.name, file="")
    suite = suite.only(list(dict.fromkeys(published_results(folder)["row"])))
    entries = {entry.key: entry.params for entry in _published_choices(folder)}
    tuned = {key: entries[study] for key, study in study_keys(suite).items() if study in entries}
    return replace(suite, backbone=next(iter(cells.values())).backbone, tuned=tuned)


def published_notes(folder: Path) -> list[str]:
    """How much the tuned values of a published run can be relied on."""
    choices = _published_choices(folder)
    return tuning_notes(choices) if choices else []


def _published_choices(folder: Path) -> list[Tuned]:
    path = published_file(folder, TUNED)
    return read_tuned(path) if path.exists() else []


def recorded_in(folder: Path, suite: Suite | None = None) -> Recorded:
    """What a published run was reported from, without MLflow; ``suite`` is its suite, by default as published."""
    suite = suite or published_suite(folder)
    lines, cells, results = published_lines(folder), published_cells(folder), published_results(folder)
    planned = suite.planned()
    if [(entry.row.key, entry.policy, entry.cell.seed) for entry in planned] != list(
        results[["row", "policy", "seed"]].itertuples(index=False, name=None)
    ):
        raise UserError(f"{folder / RESULTS} does not list the entries of its suite; publish the run again.")
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
    lines = {line["hash"]: line for line in published_lines(folder)}
    taken = [key for key in lines if key in wanted and not is_done(run_folder(out, wanted[key]))]
    records = verify_runs(folder, [lines[key] for key in taken], published_records(folder))
    count = 0
    for key in taken:
        try:
            _restore_run(folder, lines[key], records[key], wanted[key], out)
            count += 1
        except LockedError:  # another process is at it
            continue
    return Restored(count, len(lines.keys() - wanted.keys()))


def _restore_run(folder: Path, line: Mapping[str, Any], records: pd.DataFrame, cell: Cell, out: Path) -> None:
    """Files are written whole next to the run folders; only then is what a begun run has left cleared."""
    run, partition = run_folder(out, cell), published_partition(folder, line["summary"])
    scores = _scores(folder, line)
    if scores:
        check_scores(scores_frame(scores, folder), with_test_set(records), folder)
    run.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out, prefix=".restored-") as scratch:
        new = Path(scratch)
        write_atomic(new / "records.csv", records.to_csv(index=False, lineterminator="\n").encode())
        write_atomic(new / "rounds.csv", line["rounds"].encode())
        if scores:
            write_atomic(new / SCORES, scores)
        if partition:
            partition.save(new / "partition.npz")
        with open_folder(run, cell, restart=True):
            for path in new.iterdir():
                path.replace(run / path.name)
            finish(run, line["summary"])
