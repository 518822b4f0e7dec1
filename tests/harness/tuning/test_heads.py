"""Which readings of a training count for its tuning."""

from types import SimpleNamespace
from typing import Any

import pytest

from fedprompt.harness.tuning.heads import readings


@pytest.mark.parametrize(
    ("epochs", "policies", "keys"),
    [
        (0, ["global"], ("average",)),
        (1, ["global_then_ft"], ("average_ft",)),
        (1, ["global", "global_then_ft"], ("average", "average_ft")),
    ],
)
def test_the_readings_are_those_that_the_suite_lists(epochs: int, policies: list[str], keys: tuple[str, ...]) -> None:
    cell: Any = SimpleNamespace(method="fedvpt", protocol=SimpleNamespace(finetune_epochs=epochs))
    entries: Any = [SimpleNamespace(policy=policy) for policy in policies]
    assert readings(cell, entries) == keys
