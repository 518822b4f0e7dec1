"""The table of docs/costs.md is what the registry and the count say."""

from pathlib import Path

import pytest

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.harness.planning.cost import markdown, meta_backbone
from fedprompt.methods import registry

PAGE = Path(__file__).parents[1] / "docs" / "costs.md"
METHODS = registry().names(FrozenViT.offers)


def test_every_method_has_its_row_under_its_title() -> None:
    rows = [line.split("|")[1].strip() for line in PAGE.read_text().split("\n\n")[2].splitlines()[2:]]
    assert rows == [registry().title(name) for name in METHODS]


@pytest.mark.slow
def test_the_numbers_are_those_of_the_count() -> None:
    assert markdown(meta_backbone(), METHODS) in PAGE.read_text()
