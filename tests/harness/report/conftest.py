from pathlib import Path

import pytest
from support.run_folders import new_store

from fedprompt.harness.report import write


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return new_store(tmp_path)


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables only: drawing takes seconds."""
    monkeypatch.setattr(write, "write_figures", lambda *_, **__: [])
