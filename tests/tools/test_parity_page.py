"""docs/parity.md is what parity.toml says, and that names methods, tests and vectors that there are."""

import re
from pathlib import Path

import parity_page
import pytest

from fedprompt.harness.report.parity import parity_of_methods
from fedprompt.methods import registry

ROOT = Path(__file__).parents[2]
ENTRIES = parity_of_methods()


def test_the_page_is_current() -> None:
    assert parity_page.PAGE.read_text() == parity_page.page(), "run: python tools/parity_page.py"


def test_every_method_has_an_entry_in_the_order_of_tables() -> None:
    ours = [name for name in registry().names() if registry().get(name).__module__.startswith("fedprompt.methods.")]
    assert list(ENTRIES) == ours


def test_the_page_states_the_tolerances() -> None:
    assert {name for name, entry in ENTRIES.items() if entry.tolerance != 1e-12} == {"fedotp"}
    assert ENTRIES["fedotp"].tolerance == 1e-11
    assert "the tests allow 1e-12, for FedOTP 1e-11" in parity_page.page()


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_says_what_agrees_or_why_nothing_does(name: str) -> None:
    entry = ENTRIES[name]
    if entry.code:
        assert entry.vectors
        assert entry.compared
        assert entry.functions
        assert 0 < entry.reached < entry.tolerance <= 1e-11
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+ [0-9a-f]{7,40}", code) for code in entry.code)
    else:
        assert entry.without
        assert entry.stands_in
        assert not entry.vectors


@pytest.mark.parametrize("test", sorted({test for entry in ENTRIES.values() for test in entry.stands_in}))
def test_what_stands_in_for_parity_is_there(test: str) -> None:
    file, _, function = test.partition("::")
    assert re.search(rf"^def {function}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_the_page_of_methods_has_a_column_of_parity() -> None:
    rows = re.findall(r"^\| \[`([\w-]+)`\].*\| (\S+) \|$", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE)
    methods = {name: registry().resolve(name)[0] for name, _ in rows}
    assert set(methods.values()) == set(ENTRIES)
    assert dict(rows) == {name: ENTRIES[method].brief for name, method in methods.items()}
