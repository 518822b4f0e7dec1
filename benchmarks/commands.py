"""What whole commands take: CPU seconds of new processes, for some over importing what nearly every command needs."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from speed import Line

from fedprompt.core.errors import UserError
from fedprompt.core.progress import track

IMPORTS = ("-c", "import torch, timm")
FEDPROMPT = ("-m", "fedprompt.harness.cli")
COMPLETE = re.compile(r"Cells: (\d+) of \1 finished")  # as a report says it


class Command(NamedTuple):
    arguments: tuple[str, ...]
    aim: float
    over_imports: bool = False  # else in seconds
    must_say: re.Pattern[str] = re.compile("")  # or it has not done the work that the aim is about


COMMANDS = (
    Command(("--help",), 0.1, over_imports=True),
    # 40 % of what it took when start-up was first looked at (47.9 s, and the imports 2.1 s).
    Command(("bench", "smoke", "--workers", "1"), 9.0, over_imports=True),
    Command(("plan", "paper"), 15.0),
)


def timed(arguments: tuple[str, ...]) -> tuple[float, str]:
    """CPU seconds of a Python process in an empty folder, with what it starts and waits for; and what it prints."""
    import resource  # of Unix

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise UserError(f"{' '.join(arguments)} cannot be timed, because it fails: {reason}")
    return spent() - before, done.stdout


def compare_commands(
    out: Path,
    commands: tuple[Command, ...] = COMMANDS,
    time: Callable[[tuple[str, ...]], tuple[float, str]] = timed,
) -> Iterator[Line]:
    """One line per command; that of `report embedded` only if ``out`` has all runs of the suite."""
    database = out.resolve() / "mlflow.db"
    if database.exists():
        report = ("report", "embedded", "--tracking-uri", f"sqlite:///{database}")
        commands = (*commands, Command(report, 10.0, must_say=COMPLETE))
    imports = median(time(IMPORTS)[0] for _ in range(3))
    for arguments, aim, over_imports, must_say in track(commands, "commands"):
        seconds, said = time((*FEDPROMPT, *arguments))
        if must_say.search(said):
            work = f"`fedprompt {' '.join(arguments[:2])}`, CPU time"
            if over_imports:
                yield Line(f"{work} over that of importing torch and timm", seconds / imports, aim)
            else:
                yield Line(f"{work} in seconds", seconds, aim)
