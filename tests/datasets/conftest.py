from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepared data of a test go to a folder of its own, whatever the user's settings are."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDPROMPT_CACHE", str(folder))
    monkeypatch.delenv("FEDPROMPT_DATA", raising=False)
    return folder
