"""Rows of a table that are readings of one training share its cells."""

from typing import Any

import pytest

from fedprompt.harness.running.suite import Planned
from fedprompt.harness.running.suite_file import load_suite, parse_suite
from fedprompt.harness.tuning.search import searches

SETTING = {"table": "T", "dataset": "glyph-domains", "partition": "domains:m=1"}


def planned(*methods: str, **keys: Any) -> dict[str, Planned]:
    raw = {"backbone": "micro-clip", "seeds": [0], "methods": list(methods), "settings": [SETTING], **keys}
    return {entry.row.key: entry for entry in parse_suite("x", raw).planned()}


@pytest.mark.parametrize(
    ("plain", "tuned", "other"), [("promptfl", "promptfl-ft", "coop"), ("head-tune", "head-tune-ft", "local-head")]
)
def test_a_row_after_fine_tuning_is_read_from_the_plain_rows_cell(plain: str, tuned: str, other: str) -> None:
    entries = planned(plain, tuned, other)
    assert entries[plain].cell == entries[tuned].cell != entries[other].cell
    assert entries[plain].cell.protocol.finetune_epochs > 0
    assert entries[plain].reading + "_then_ft" == entries[tuned].reading


def test_a_row_alone_fine_tunes_only_what_it_shows() -> None:
    assert planned("promptfl")["promptfl"].cell.protocol.finetune_epochs == 0
    assert planned("promptfl-ft")["promptfl-ft"].cell == planned("promptfl", "promptfl-ft")["promptfl"].cell


def test_a_variant_with_its_own_parameters_trains_for_itself() -> None:
    variants = {"short": {"method": "promptfl-ft", "params": {"length": 4}}}
    entries = planned("promptfl", "short", variants=variants)
    assert entries["promptfl"].cell.protocol.finetune_epochs == 0 < entries["short"].cell.protocol.finetune_epochs


def test_both_readings_decide_the_rate_that_they_share() -> None:
    (search,) = searches(load_suite("embedded-clip").only(["promptfl"]))[:1]
    assert search.readings == ("average", "average_ft")


def test_a_swept_cell_stands_for_the_same_one_without_a_sweep() -> None:
    sweep = {**SETTING, "kind": "vsweep", "methods": ["pfedbayespt"], "protocol": {"sweep": True}}
    raw = {"backbone": "micro-vit", "seeds": [0], "methods": ["fedvpt", "pfedbayespt"], "settings": [SETTING, sweep]}
    fedvpt, main, swept = parse_suite("x", raw).planned()
    assert main.cell == swept.cell
    assert swept.cell.protocol.sweep
    assert not fedvpt.cell.protocol.sweep
