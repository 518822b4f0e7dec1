"""Where cells depart from what the papers say."""

from pathlib import Path

from paper_differences import differences_table
from support.report_suites import a_suite
from support.run_folders import BACKBONE

from fedprompt.harness.report.published import method_differences
from fedprompt.harness.running.cell import make_cell
from fedprompt.harness.running.suite_file import load_suite

DOCS = Path(__file__).parents[2] / "docs" / "paper-differences.md"


def test_the_documentation_lists_all_that_remain() -> None:
    assert differences_table(load_suite("paper")) in DOCS.read_text()


def names(partition: str, **params: object) -> set[str]:
    cell = make_cell("sgpt", "glyph-domains", partition, BACKBONE, params=params)
    return {change.what for change in method_differences(a_suite(), cell)}


def test_what_a_paper_says_may_depend_on_the_kind_of_shift() -> None:
    assert {"query_blocks", "batch_vote"} <= names("domains:m=1")
    assert not {"query_blocks", "batch_vote"} & names("classes:s=5")
    assert not {"query_blocks", "batch_vote"} & names("domains:m=1", query_blocks=6, batch_vote=True)
