"""`fedprompt sync`: records what was run while MLflow was away."""

import sys
from pathlib import Path

from fedprompt.harness.cells.folder import is_done
from fedprompt.harness.tracking.store import first_line
from fedprompt.harness.tracking.tracker import Recorded, Tracker


def sync(out: Path, uri: str) -> tuple[int, int, int]:
    """Record every done run folder of ``out`` that the store lacks: (recorded now, already there, failed)."""
    tracker = Tracker(uri, out)
    counts: dict[Recorded, int] = {"recorded": 0, "present": 0, "failed": 0}
    for folder in sorted(path for path in (out / "runs").glob("*") if is_done(path)):
        try:
            counts[tracker.record(folder)] += 1
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"warning: {folder} cannot be read ({first_line(error)}); not recorded", file=sys.stderr)
            counts["failed"] += 1
    return counts["recorded"], counts["present"], counts["failed"]
