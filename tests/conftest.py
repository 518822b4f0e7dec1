"""What every test gets: an empty cache and a single thread, so that numbers do not depend on the machine."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from fedprompt.methods import registry

# The same examples everywhere, and no failure because a machine is busy.
settings.register_profile("suite", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("suite")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder for the test's prepared data and features, whatever the user's settings are."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDPROMPT_CACHE", str(folder))
    monkeypatch.delenv("FEDPROMPT_DATA", raising=False)
    return folder


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    """Methods that a test registers are gone after it."""
    methods = registry()._methods
    before = dict(methods)
    yield
    methods.clear()
    methods.update(before)


@pytest.fixture
def shared_cache(own_cache: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One cache for the whole session and all its workers, so that the embedded data are drawn once."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "shared-cache"
    monkeypatch.setenv("FEDPROMPT_CACHE", str(folder))
    return folder
