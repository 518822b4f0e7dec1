"""Effects that are planted in records, and what the whole report says about them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.report_suites import a_setting, a_suite, report, row_of
from support.run_folders import done_folder

from fedprompt.harness.measuring.evaluation import Record
from fedprompt.harness.recording.tracker import sync
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.suite import Suite

CLIENTS, IMAGES = 20, 400
POLICIES = ("local", "global", "global_then_ft")
METHODS = ("head-tune", "fedvpt", "fedvpt-d", "sgpt")
BETTER, COPY = "fedvpt", "fedvpt-d"


def control_images(cell: Cell) -> np.ndarray:
    """Which test images no prompt gets right, clients x images."""
    rng = np.random.default_rng([cell.seed, len(cell.protocol.head)])
    return rng.random((CLIENTS, IMAGES)) < rng.uniform(0.4, 0.8, (CLIENTS, 1))


def planted(cell: Cell) -> np.ndarray:
    """FedVPT is right wherever the control is, and on 5 % of the images besides; FedVPT-D is a copy of the control."""
    right = control_images(cell)
    if cell.method == BETTER:
        share = 0.05 / (1 - right.mean())
        return right | (np.random.default_rng(cell.seed).random(right.shape) < share)
    if cell.method == "sgpt":  # as good as the control on average, on other images
        return np.random.default_rng([7, cell.seed]).random(right.shape) < right.mean(axis=1, keepdims=True)
    return right


def equal(cell: Cell) -> np.ndarray:
    return control_images(cell)


def run(suite: Suite, uri: str, out: Path, images: Callable[[Cell], np.ndarray]) -> None:
    """Every client has two domains, of which the second has three quarters of the images."""
    for cell in suite.cells():
        right = images(cell)
        parts = {"photo": right[:, : IMAGES // 4], "sketch": right[:, IMAGES // 4 :]}
        records = [
            Record(round_, client, domain, int(part[client].sum()), part.shape[1], True, policy=policy)
            for policy in ([cell.protocol.head, "global_then_ft"] if cell.protocol.finetune_epochs else ["local"])
            for round_ in (1, 2)
            for domain, part in parts.items()
            for client in range(CLIENTS)
        ]
        done_folder(out, cell, [[]] * 2, extra=records)
    sync(out, uri)


@pytest.fixture
def suite() -> Suite:
    return a_suite(settings=(a_setting(methods=METHODS, policies=POLICIES),), seeds=(0, 1))


def test_a_planted_effect_is_found_and_a_planted_copy_is_not_called_different(
    suite: Suite, tmp_path: Path, uri: str, no_figures: None
) -> None:
    run(suite, uri, tmp_path, planted)
    _, text, table = report(suite, uri, tmp_path)
    averages = table[table["metric"] == "average"].set_index(["policy", "row"])
    for policy in POLICIES:
        better, copy, other = (averages.loc[(policy, row)] for row in (BETTER, COPY, "sgpt"))
        assert better["gain_low"] < 5 < better["gain_high"]
        assert better["gain_p_adjusted"] < 0.05
        assert better["leads"]
        assert copy[["gain", "gain_low", "gain_high", "gain_p_adjusted"]].tolist() == [0, 0, 0, 1]
        assert not copy["leads"]
        assert other["gain_low"] < 0 < other["gain_high"]
        assert 0 < better["smallest_detectable"] < 5
    for head in ("a local head", "a global head", "a global head that each client fine-tunes"):
        assert f"Feature shift, m=1: Under {head}, 1 of 3 methods gains over no prompt: FedVPT " in text
    assert [entry.startswith("**") for entry in row_of(text, "FedVPT")[1::2][:3]] == [True] * 3
    assert not any("**" in entry for title in ("No prompt", "FedVPT-D", "SGPT") for entry in row_of(text, title))


@pytest.mark.slow
def test_copies_are_never_bold_nor_called_different(suite: Suite, tmp_path: Path, uri: str, no_figures: None) -> None:
    run(suite, uri, tmp_path, equal)
    _, text, table = report(suite, uri, tmp_path)
    assert not table["leads"].any()
    assert table["gain"].dropna().unique().tolist() == [0.0]
    assert text.count("no significant difference from no prompt for any of 3 methods") == 2 * len(POLICIES)
    assert "**" not in text.partition("## Feature shift")[2]


@pytest.mark.slow
def test_report_begins_with_what_the_tables_say(suite: Suite, tmp_path: Path, uri: str, no_figures: None) -> None:
    run(suite, uri, tmp_path, planted)
    text = report(suite, uri, tmp_path)[1]
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[:3] == ["## What the tables say", "## How to read the tables", "## Feature shift: m=1"]
    said = text.partition("## What the tables say")[2].partition("\n## ")[0]
    assert "Mean ranks over 1 setting say nothing; it takes at least 5." in said
    assert said.count("smallest detectable difference") == len(POLICIES)


@pytest.mark.slow
def test_csv_has_gains_and_their_company(suite: Suite, tmp_path: Path, uri: str, no_figures: None) -> None:
    run(suite, uri, tmp_path, planted)
    table = report(suite, uri, tmp_path)[2]
    expected = {"policy", "gain", "gain_low", "gain_high", "gain_p_adjusted", "moving", "smallest_detectable"}
    assert expected | {"p10", "p50", "p90"} <= set(table.columns)
    assert table["policy"].unique().tolist() == list(POLICIES)
    assert table.loc[table["metric"] == "worst_local", "gain"].isna().all()
    average = table[(table["metric"] == "average") & (table["row"] == "head-tune") & (table["policy"] == "local")]
    cells = [cell for cell in suite.cells() if cell.method == "head-tune" and cell.protocol.head == "local"]
    accuracies = np.concatenate([control_images(cell).mean(axis=1) for cell in cells])  # over both domains
    assert average["p10"].item() == pytest.approx(100 * np.quantile(accuracies, 0.1))
