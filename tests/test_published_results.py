"""What README and docs say of our own runs is what the published files hold, and a published cell can be run again."""

import dataclasses
import re
from pathlib import Path

import pandas as pd
import pytest
from excerpt import renew

from fedprompt.datasets import dataset_names
from fedprompt.harness.report.reference import recorded_in, write_texts
from fedprompt.harness.report.verified import published_cells, published_records
from fedprompt.harness.running.code import code_digest
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.run import run_cell
from fedprompt.harness.running.suite_file import load_suite
from fedprompt.methods import registry

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "docs/results.md"])
def test_every_number_is_that_of_the_published_files(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "<!-- excerpt of results/reference/embedded" in text
    assert text == renew(text, ROOT), "run: make excerpts"


def test_results_say_what_data_and_weights_each_suite_needs() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    named = set(re.findall(r"fedprompt \w+ ([\w-]+) --", page)) - set(dataset_names())
    named |= {folder.name for folder in (ROOT / "results" / "reference").iterdir()}
    for name in named:
        suite = load_suite(name)
        needed = {setting.dataset for setting in suite.settings} - {"glyph-domains", "glyph-100"}
        [line] = re.findall(rf"^- [^:]*`{name}`.*?: (.*?)(?=\n-|\n\n)", page, re.DOTALL | re.MULTILINE)
        assert line.startswith("nothing") == (not needed)
        for word in needed | ({suite.backbone.name} if needed else set()):
            assert f"`{word}`" in line


def test_the_readme_has_one_figure_of_a_published_run() -> None:
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", (ROOT / "README.md").read_text())
    assert pictures == ["docs/gains.png"]
    assert (ROOT / pictures[0]).is_file()
    assert not list((ROOT / "results" / "reference").rglob("*.png"))  # `make docs` draws the others


@pytest.mark.parametrize(
    "name",
    ["embedded", *(pytest.param(name, marks=pytest.mark.slow) for name in ("embedded-clip", "cpu-office"))],
)
def test_published_texts_are_made_from_the_published_records(name: str, tmp_path: Path) -> None:
    folder = ROOT / "results" / "reference" / name
    write_texts(recorded_in(folder), folder, tmp_path)
    for file in ("tables.csv", "report.md"):
        assert (tmp_path / file).read_text() == (folder / file).read_text(), "run: make excerpts"


@pytest.mark.slow
def test_a_published_cell_gives_its_records_again(tmp_path: Path) -> None:
    """To the image on this kind of machine; elsewhere rounding may move one of them."""
    folder = ROOT / "results" / "reference" / "embedded"
    cells = published_cells(folder)
    key, cell = next((key, cell) for key, cell in cells.items() if cell.method == "head-tune")
    records = published_records(folder)
    expected = records[records["cell"] == key].drop(columns="cell").reset_index(drop=True)
    today = dataclasses.replace(cell, code=code_digest(registry().get(cell.method)))
    run = run_cell(today, RunEnvironment(tmp_path))
    again = pd.read_csv(run / "records.csv", dtype={"partition": str})
    counts = ["correct"]
    pd.testing.assert_frame_equal(again.drop(columns=counts), expected.drop(columns=counts))
    assert (again["correct"] - expected["correct"]).abs().max() <= 1
