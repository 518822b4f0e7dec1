"""`make perf`: not part of `make test`, which times nothing."""

from collections.abc import Iterator
from typing import Any

import pytest

from fedprompt.harness.planning.speed import workloads


def cases() -> Iterator[Any]:
    for group, ways in workloads().items():
        for way, work in ways.items():
            yield pytest.param(work, marks=pytest.mark.benchmark(group=group), id=way)


@pytest.mark.parametrize("work", cases())
def test_speed(benchmark: Any, work: Any) -> None:
    assert benchmark(work) is not None
