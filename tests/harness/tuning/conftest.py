from pathlib import Path

import pytest
from support.tuning_bench import Bench, a_suite, tune

from fedprompt.harness.running.suite import Suite


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, monkeypatch)


@pytest.fixture
def suite() -> Suite:
    return a_suite(**tune())
