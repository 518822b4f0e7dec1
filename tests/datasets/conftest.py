import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepared data of a test go to a folder of its own, whatever the user's settings are."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("FEDPROMPT_CACHE", str(folder))
    monkeypatch.delenv("FEDPROMPT_DATA", raising=False)
    return folder


@pytest.fixture
def full_disk() -> Callable[[int], AbstractContextManager[None]]:
    """Within ``full_disk(n)`` no file can grow beyond n bytes, as on a disk without room."""

    @contextmanager
    def limited(room: int) -> Iterator[None]:
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, old[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)

    return limited
