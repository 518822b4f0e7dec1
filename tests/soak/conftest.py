"""`make soak`: what is too long for every day. A failing run prints the seed that repeats it."""

import os
import random
import time

import pytest
from hypothesis import HealthCheck, settings
from support.toy_cells import toy_cell as toy_cell
from support.toy_cells import toy_source as toy_source

SEED = int(os.environ.get("SOAK_SEED", time.time_ns() % 10**9))
FIGURES: list[str] = []
ORDER = (
    "test_kills",
    "test_two_benches",
    "test_full_disk",
    "test_fuzz",
)  # what takes processes first, in case time is up

settings.register_profile(
    "soak", deadline=None, database=None, max_examples=5000, suppress_health_check=list(HealthCheck), print_blob=True
)
settings.load_profile("soak")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.stem) if item.path.stem in ORDER else len(ORDER))


@pytest.fixture
def figures() -> list[str]:
    """Lines that are printed at the end."""
    return FIGURES


@pytest.fixture
def moments() -> random.Random:
    return random.Random(SEED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    terminalreporter.section("soak")
    for line in FIGURES:
        terminalreporter.write_line(line)
    lost = len(terminalreporter.stats.get("failed", [])) + len(terminalreporter.stats.get("error", []))
    if lost:
        terminalreporter.write_line(f"{lost} properties violated; SOAK_SEED={SEED}")
    elif exitstatus == pytest.ExitCode.INTERRUPTED:
        terminalreporter.write_line("stopped before the end: what is not listed above was not tried")
    else:
        terminalreporter.write_line("nothing lost")
