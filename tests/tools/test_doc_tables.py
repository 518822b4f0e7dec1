"""Tables of docs/costs.md and docs/tuning.md."""

from pathlib import Path

from doc_tables import cost_table, space_table

from fedprompt.harness.conformance.toy import toy_backbone
from fedprompt.harness.tuning.spaces import search_space
from fedprompt.methods import registry

TUNING = Path(__file__).parents[2] / "docs" / "tuning.md"


def test_costs_have_a_line_for_every_method() -> None:
    lines = cost_table(toy_backbone().to("meta"), ["head-tune", "local-head"], classes=4, batch_size=2).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| No prompt", "| No prompt, local head"]
    assert lines[2].endswith("| 132 | 132 |")  # 4 classes of width 32 and their biases


def test_the_documented_spaces_are_those_of_the_methods() -> None:
    shipped = [name for name in registry().names() if registry().get(name).__module__.startswith("fedprompt.methods.")]
    table = space_table(name for name in shipped if search_space(name, {}, "here"))
    assert table in TUNING.read_text(), f"docs/tuning.md should show\n\n{table}"
