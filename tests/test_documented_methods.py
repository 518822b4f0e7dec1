"""README and docs/methods.md name the methods that there are."""

import re
from pathlib import Path

import pytest

from fedprompt.methods import registry

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "methods.md").read_text()


def test_the_readme_counts_the_methods() -> None:
    [count] = re.findall(r"\[(\d+) methods\]\(docs/methods\.md\)", (ROOT / "README.md").read_text())
    assert int(count) == len(registry().names())


@pytest.mark.parametrize("name", registry().names())
def test_every_method_has_a_row_that_links_its_section(name: str) -> None:
    [anchor] = re.findall(rf"^\| \[`{name}`\]\(#([\w-]+)\)", PAGE, re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_no_method_is_listed_as_missing() -> None:
    rows = PAGE.split("# Methods that are missing")[1].split("| --- | --- |\n")[1].split("\n\n")[0].splitlines()
    missing = {name.strip() for row in rows for name in re.sub(r"\(.*?\)", "", row.split("|")[1]).split(",")}
    assert "CAPT" in missing
    assert missing.isdisjoint({name for key in registry().names() for name in (key, registry().title(key))})
