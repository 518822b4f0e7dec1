import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest


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
