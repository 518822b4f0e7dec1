"""From recorded runs to files, and the same again without the run folders."""

import dataclasses
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
from support.report_suites import a_suite, every_kind, report, row_of, run_all
from support.run_folders import done_folder

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.core.errors import UserError
from fedprompt.harness.recording.tracker import Tracker, sync
from fedprompt.harness.report import papers
from fedprompt.harness.report.collect import collect
from fedprompt.harness.report.compose import summarise_suite
from fedprompt.harness.report.numbers import numbers_frame
from fedprompt.methods import registry


def texts(folder: Path) -> dict[str, bytes]:
    """Every file of a report but pictures, which the page holds as well."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".png", ".pdf"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
def test_report_is_the_same_to_the_byte_without_the_run_folders(tmp_path: Path, uri: str) -> None:
    suite = every_kind()
    run_all(suite, uri, tmp_path, leave=1)
    Tracker(uri, tmp_path).failed(suite.cells()[-1], "loss is not finite")
    first = report(suite, uri, tmp_path)[0]
    before = texts(tmp_path / "report" / "tiny")
    pictures = sorted(path.name for path in (tmp_path / "report" / "tiny" / "figures").iterdir())
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(tmp_path / "report")
    second = report(suite, uri, tmp_path)[0]
    assert first == second
    assert texts(tmp_path / "report" / "tiny") == before
    assert {"v-sweep.png", "v-sweep.pdf"} <= set(pictures)
    assert before["index.html"].count(b"data:image/png") == len(pictures) / 2
    assert {"report.md", "report.tex", "index.html", "tables.csv", "cells.csv", "tables/ablation.tex"} <= before.keys()


def test_untuned_rows_beside_tuned_ones_are_marked_everywhere(tmp_path: Path, uri: str, no_figures: None) -> None:
    tuned = {("head-tune", "glyph-domains", "domains:m=1", "global"): {"lr": 0.3}}
    suite = a_suite(tuned=tuned)
    run_all(suite, uri, tmp_path)
    terminal, markdown, table = report(suite, uri, tmp_path, width=300)
    command = "FedVPT, while other rows have tuned rates; tune them with: fedprompt tune tiny --methods fedvpt"
    page = (tmp_path / "report" / "tiny" / "index.html").read_text()
    assert all(command in text for text in (terminal, markdown, page))
    assert row_of(markdown, "FedVPT")[1].endswith("‡</sup>")
    assert not row_of(markdown, "No prompt")[1].endswith("‡</sup>")
    assert table.groupby("row")["untuned"].all().to_dict() == {"fedvpt": True, "head-tune": False}


def test_pictures_of_an_earlier_report_go(tmp_path: Path, uri: str, no_figures: None) -> None:
    old = tmp_path / "report" / "tiny" / "figures" / "old.png"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"")
    report(a_suite(), uri, tmp_path)
    assert not old.exists()


@pytest.mark.slow
def test_csv_holds_every_number_at_full_precision(tmp_path: Path, uri: str, no_figures: None) -> None:
    suite = every_kind()
    run_all(suite, uri, tmp_path)
    table = report(suite, uri, tmp_path)[2]
    collected = collect(suite, uri)
    summary = numbers_frame(suite, summarise_suite(suite, collected.results, collected.records, tmp_path).numbers)
    numbers = ["mean", "std", "mean_exclude", "published", "difference", "paired_difference", "paired_low", "bytes_up"]
    pd.testing.assert_frame_equal(table[numbers], summary[numbers], check_exact=True)
    assert table["suite"].unique().tolist() == ["tiny"]
    assert table["doubts"].dropna().str.contains("better of FedPR").any()


def test_cells_csv_has_one_row_per_cell_and_place(tmp_path: Path, uri: str, no_figures: None) -> None:
    suite = every_kind()
    run_all(suite, uri, tmp_path, leave=1)
    report(suite, uri, tmp_path)
    cells = pd.read_csv(tmp_path / "report" / "tiny" / "cells.csv")
    assert len(cells) == len(list(suite.planned()))
    assert cells["partition_hash"].dropna().unique().tolist() == ["0123456789abcdef"]
    assert (cells["status"] == "missing").sum() == 1


def test_a_gain_without_its_control_is_explained_at_the_table(tmp_path: Path, uri: str, no_figures: None) -> None:
    suite = a_suite(("head-tune", "fedvpt"))  # with a global and a local head, as in their papers
    run_all(suite, uri, tmp_path)
    _, markdown, _ = report(suite, uri, tmp_path)
    assert row_of(markdown, "FedVPT")[2] == "–"
    for text in (markdown, (tmp_path / "report" / "tiny" / "index.html").read_text()):
        assert "No gain (–): the table has no finished row of no prompt with a local head, the control." in text


def test_missing_cells_are_shown_as_missing(tmp_path: Path, uri: str, no_figures: None) -> None:
    terminal, text, table = report(a_suite(("fedvpt",)), uri, tmp_path)
    assert row_of(text, "FedVPT") == ["FedVPT", "–", "–", "–"]
    assert "0 of 1 cells are finished" in terminal
    assert table["status"].tolist() == ["missing", "missing"]


def test_failed_cells_are_shown_with_their_reason(tmp_path: Path, uri: str, no_figures: None) -> None:
    suite = a_suite()
    Tracker(uri, tmp_path).failed(suite.cells()[1], "loss is not finite | round 3")
    terminal, text, _ = report(suite, uri, tmp_path)
    assert row_of(text, "FedVPT")[1] == "failed"
    assert "failed: fedvpt, Feature shift, m=1, seed 0: loss is not finite | round 3" in terminal


def test_diverged_cells_are_shown_as_diverged(tmp_path: Path, uri: str, no_figures: None) -> None:
    suite = a_suite()
    run_all(suite, uri, tmp_path, leave=1)
    Tracker(uri, tmp_path).failed(suite.cells()[-1], "diverged in round 2, client 5: loss is not finite")
    terminal, markdown, table = report(suite, uri, tmp_path, width=300)
    assert row_of(markdown, "FedVPT")[1:4] == ["diverged"] * 3  # Average, gain, Worst Local
    assert row_of(markdown.partition(", over clients")[2], "FedVPT")[1:] == ["diverged"] * 3  # deciles
    assert "diverged: fedvpt, Feature shift, m=1, seed 0: diverged in round 2, client 5" in terminal
    assert table[table["row"] == "fedvpt"]["mean"].isna().all()


def test_a_report_that_would_lose_numbers_is_not_written(tmp_path: Path, uri: str, no_figures: None) -> None:
    suite = a_suite()
    run_all(suite, uri, tmp_path)
    report(suite, uri, tmp_path)
    before = texts(tmp_path / "report" / "tiny")
    other = dataclasses.replace(suite, backbone=dataclasses.replace(suite.backbone, weights="hub"))
    with pytest.raises(UserError, match=r"2 of its 2 numbers are missing here; these differ in weights\."):
        report(other, uri, tmp_path)
    assert texts(tmp_path / "report" / "tiny") == before
    report(a_suite(m=(1, 2)), uri, tmp_path)  # more cells, not all of them finished, lose nothing
    assert texts(tmp_path / "report" / "tiny") != before


def test_cells_of_other_code_are_told_with_what_to_do(tmp_path: Path, uri: str, no_figures: None) -> None:
    suite = a_suite(("fedvpt",))
    done_folder(tmp_path, dataclasses.replace(suite.cells()[0], code="before"), [[0.2, 0.8]] * 2)
    sync(tmp_path, uri)
    told = "1 cells are finished, but by other code than the present (fedvpt 1), and not shown"
    assert told in report(suite, uri, tmp_path, width=300)[0]


def test_value_without_never_sampled_clients_stands_below(tmp_path: Path, uri: str, no_figures: None) -> None:
    suite = a_suite(("fedvpt",))
    done_folder(tmp_path, suite.cells()[0], [[0.1, 0.5, 0.6]] * 2, never=(0,))
    sync(tmp_path, uri)
    _, text, table = report(suite, uri, tmp_path)
    assert row_of(text, "FedVPT")[1:3] == ["40.00<br>[55.00]", "10.00<br>[50.00]"]
    assert "- [ ]: the value without clients that never took part" in text
    assert table["mean_exclude"].tolist() == pytest.approx([55.0, 50.0])


def test_rows_stand_in_the_suites_order(tmp_path: Path, uri: str, no_figures: None) -> None:
    names = list(reversed(registry().names(FrozenViT.offers)))
    _, text, _ = report(a_suite(names), uri, tmp_path)
    titles = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert titles[2 : 2 + len(names)] == [registry().get(name).title for name in names]


def test_without_printed_values_it_is_said(
    tmp_path: Path, uri: str, no_figures: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers, "ROOT", tmp_path / "nowhere")
    text = report(every_kind((0,)), uri, tmp_path)[1]
    assert "Left out: no printed values of these settings were found" in text
    assert "Left out" not in report(a_suite(), uri, tmp_path)[1]


@pytest.mark.slow
def test_two_reports_of_one_suite_take_turns(tmp_path: Path, uri: str) -> None:
    suite = every_kind()
    run_all(suite, uri, tmp_path)
    with ThreadPoolExecutor(2) as threads:
        pages = list(threads.map(lambda _: report(suite, uri, tmp_path)[1], range(2)))
    assert pages[0] == pages[1]
