"""The answers in docs/results.md are those of the published files."""

import re
from pathlib import Path

import pandas as pd
from answers import answers, client_accuracies, collapses

ROOT = Path(__file__).parents[2]
ANSWERS = re.compile(r"<!-- answers of (\S+) -->\n(.*?)<!-- end of the answers -->", re.DOTALL)


def test_every_answer_is_that_of_the_published_files() -> None:
    found = ANSWERS.findall((ROOT / "docs" / "results.md").read_text())
    assert found
    for folder, text in found:
        assert text == answers(ROOT / folder)


def test_the_last_line_on_collapses_is_that_of_the_published_files() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    [row] = re.findall(r"\(this table\) \| (\d+) of (\d+) \| (\d+) \| (\d+) \|", page)
    collapsed, runs, searched, elsewhere = map(int, row)
    said = collapses(pd.read_csv(ROOT / "results" / "reference" / "cpu-office" / "cells.csv"))
    assert f"?** {collapsed} of {runs}: {searched} at m=1; " in said
    assert collapsed == searched + elsewhere


def test_accuracies_of_clients_are_those_that_the_tables_average() -> None:
    folder = ROOT / "results" / "reference" / "embedded"
    clients = client_accuracies(folder)
    clients = clients[(clients["kind"] == "heterogeneity") & (clients["samples"] == 0)]
    place = ["setting", "policy", "row"]
    ours = 100 * clients.groupby([*place, "seed"])["accuracy"].mean().groupby(place).mean()
    table = pd.read_csv(folder / "tables.csv")
    table = table[(table["kind"] == "heterogeneity") & (table["metric"] == "average")].set_index(place)["mean"]
    pd.testing.assert_series_equal(ours.sort_index(), table.sort_index(), check_names=False)
