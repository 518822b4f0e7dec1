"""What README and docs say of our own runs is what the published files hold, and a published cell can be run again."""

import dataclasses
import re
from pathlib import Path

import pandas as pd
import pytest

from fedprompt.harness.cells.code import code_digest
from fedprompt.harness.cells.run import run_cell
from fedprompt.harness.cells.site import Site
from fedprompt.harness.report.excerpt import excerpt
from fedprompt.harness.report.reference import published_cells, published_records
from fedprompt.methods import registry

ROOT = Path(__file__).parents[1]
EXCERPT = re.compile(r"<!-- excerpt of (\S+) -->\n(.*?)<!-- end of the excerpt -->", re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_every_number_is_that_of_the_published_files(page: str) -> None:
    excerpts = EXCERPT.findall((ROOT / page).read_text())
    assert excerpts
    for folder, text in excerpts:
        assert text == excerpt(ROOT / folder)


def test_the_readmes_figure_exists() -> None:
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", (ROOT / "README.md").read_text())
    assert [picture for picture in pictures if not (ROOT / picture).is_file()] == []


@pytest.mark.slow
def test_a_published_cell_gives_its_records_again(tmp_path: Path) -> None:
    """To the image on this kind of machine; elsewhere rounding may move one of them."""
    folder = ROOT / "results" / "reference" / "embedded"
    cells = published_cells(folder)
    key, cell = next((key, cell) for key, cell in cells.items() if cell.method == "head-tune")
    records = published_records(folder)
    expected = records[records["cell"] == key].drop(columns="cell").reset_index(drop=True)
    today = dataclasses.replace(cell, code=code_digest(registry().get(cell.method)))
    run = run_cell(today, Site(tmp_path))
    again = pd.read_csv(run / "records.csv", dtype={"partition": str})
    counts = ["correct"]
    pd.testing.assert_frame_equal(again.drop(columns=counts), expected.drop(columns=counts))
    assert (again["correct"] - expected["correct"]).abs().max() <= 1
