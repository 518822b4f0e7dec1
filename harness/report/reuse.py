"""Whether a report still holds: if nothing was recorded since it was written, a second `bench` takes seconds."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from fedprompt.core.files import write_atomic
from fedprompt.harness.measuring import measures
from fedprompt.harness.recording.store import FoundRuns, find_runs
from fedprompt.harness.running.suite import Suite

STAMP, TEXT = ".stamp", "report.txt"  # what the report was made from; what the terminal showed


def still_holds(suite: Suite, uri: str, out: Path, accept_code: bool = False) -> str | None:
    """What the terminal showed of the suite's report, if a new one would say the same."""
    folder = out / "report" / suite.name
    try:
        stamp, text = (folder / STAMP).read_text(), (folder / TEXT).read_text()
    except OSError:
        return None
    if not (folder / "index.html").exists():
        return None
    return text if stamp == make_stamp(suite, find_runs(uri, suite.cells()), out, accept_code) else None


def write_stamp(folder: Path, stamp: str, text: str) -> None:
    """Keep what the report was made from, and what the terminal showed of it."""
    write_atomic(folder / TEXT, text.encode())
    write_atomic(folder / STAMP, stamp.encode())


def make_stamp(suite: Suite, suite_runs: FoundRuns, out: Path, accept_code: bool) -> str:
    """Digest of the suite, its recorded runs, the tuned and printed values, and the code that reports them."""
    entries = [
        (*asdict(entry.setting).items(), entry.row.title, entry.policy, entry.cell.hash) for entry in suite.planned()
    ]
    runs = [(key, run) for group in (suite_runs.current, suite_runs.older) for key, run in group.items()]
    states = sorted((key, run.info.run_id, run.info.status, run.info.end_time or 0) for key, run in runs)
    failures = sorted(str(path) for path in (out / "runs").glob("*/failed.json"))
    files = [*Path(__file__).parent.rglob("*.*"), Path(measures.__file__)]
    files += [*(out / "paper").glob("*"), *(out / "tuned").glob("*")]
    code = [(file.name, file.stat().st_mtime_ns) for file in sorted(files) if "__pycache__" not in file.parts]
    everything = [
        accept_code,
        suite.title,
        suite.argument,
        entries,
        suite.measures,
        sorted(map(str, suite.tuned.items())),
        states,
        failures,
        code,
    ]
    return hashlib.sha256(json.dumps(everything, default=str).encode()).hexdigest()
