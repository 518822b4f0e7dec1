"""Tables of docs/costs.md and docs/tuning.md: what the registry and the count say."""

from pathlib import Path

import pytest
from doc_tables import cost_table, space_table

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.harness.conformance.toy import toy_backbone
from fedprompt.harness.planning.cost import meta_backbone
from fedprompt.harness.tuning.spaces import search_space
from fedprompt.methods import registry

DOCS = Path(__file__).parents[2] / "docs"
COSTS, TUNING = DOCS / "costs.md", DOCS / "tuning.md"
METHODS = registry().names(FrozenViT.offers)


def test_costs_have_a_line_for_every_method() -> None:
    lines = cost_table(toy_backbone().to("meta"), ["head-tune", "local-head"], classes=4, batch_size=2).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| No prompt", "| No prompt, local head"]
    assert lines[2].endswith("| 132 | 132 |")  # 4 classes of width 32 and their biases


def test_the_documented_costs_have_a_row_for_every_method_under_its_title() -> None:
    rows = [line.split("|")[1].strip() for line in COSTS.read_text().split("\n\n")[2].splitlines()[2:]]
    assert rows == [registry().title(name) for name in METHODS]


@pytest.mark.slow
def test_the_documented_costs_are_those_of_the_count() -> None:
    assert cost_table(meta_backbone(), METHODS) in COSTS.read_text()


def test_the_documented_spaces_are_those_of_the_methods() -> None:
    shipped = [name for name in registry().names() if registry().get(name).__module__.startswith("fedprompt.methods.")]
    table = space_table(name for name in shipped if search_space(name, {}, "here"))
    assert table in TUNING.read_text(), f"docs/tuning.md should show\n\n{table}"
