import dataclasses
import io
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console
from run_folders import BACKBONE, done_folder, new_store

from fedprompt.harness.cell import Cell
from fedprompt.harness.errors import UserError
from fedprompt.harness.report import Column, Entry, Grid, bytes_text, collect, load_results, ranked, show, write_report
from fedprompt.harness.runs import note_failure, run_folder
from fedprompt.harness.suite import Setting, Suite
from fedprompt.harness.tracking import Tracker, sync
from fedprompt.methods import registry

ROUNDS = {"rounds": 2, "last": 2}


def a_suite(methods: tuple[str, ...] = ("head-tune", "fedvpt"), seeds: tuple[int, ...] = (0,), **change: Any) -> Suite:
    settings = tuple(
        Setting("Feature shift", f"m={m}", "glyph-domains", f"domains:m={m}", ROUNDS) for m in change.pop("m", (1,))
    )
    suite = Suite("tiny", "A tiny suite", BACKBONE, methods, seeds, settings)
    return dataclasses.replace(suite, **change)


def cells(suite: Suite) -> list[Cell]:
    return [cell for _, cell in suite.cells()]


def report(suite: Suite, uri: str, out: Path, width: int = 100) -> tuple[str, str, pd.DataFrame]:
    """(terminal, Markdown, CSV)"""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    path = write_report(suite, uri, out, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), path.read_text(), pd.read_csv(path.parent / "tables.csv")


def row_of(text: str, title: str) -> list[str]:
    """The columns of a Markdown row."""
    [line] = [line for line in text.splitlines() if line.startswith(f"| {title} |")]
    return [part.strip() for part in line.strip("|").split("|")]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return new_store(tmp_path)


def test_a_row_a_cell_from_mlflow_alone(tmp_path: Path, uri: str) -> None:
    first, second = cells(a_suite())
    done_folder(tmp_path, first, [[0.5, 0.9], [0.3, 0.7]])
    sync(tmp_path, uri)
    shutil.rmtree(tmp_path / "runs")
    results = load_results(uri, [second, first])
    assert results["method"].tolist() == ["fedvpt", "head-tune"]
    assert results["status"].tolist() == ["missing", "finished"]
    assert results["average"].tolist()[1] == pytest.approx(0.6)
    assert results["worst_local"].tolist()[1] == pytest.approx(0.4)


def test_mean_and_sample_deviation_over_seeds(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",), (0, 1))
    for cell, level in zip(cells(suite), (0.5, 0.6), strict=True):
        done_folder(tmp_path, cell, [[level, level + 0.2]] * 2)
    sync(tmp_path, uri)
    _, text, table = report(suite, uri, tmp_path)
    assert row_of(text, "FedVPT")[1:3] == ["**65.00±7.07**", "**55.00±7.07**"]  # 10 / sqrt(2), not 5
    assert table.loc[table["metric"] == "average", "std"].item() == pytest.approx(7.0711, abs=1e-4)


def test_one_seed_has_no_deviation(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    done_folder(tmp_path, cells(suite)[0], [[0.5, 0.7]] * 2)
    sync(tmp_path, uri)
    assert row_of(report(suite, uri, tmp_path)[1], "FedVPT")[1:] == ["**60.00**", "**50.00**", "200 B"]


def test_best_is_bold_and_second_underlined(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("head-tune", "fedvpt", "fedvpt-d"))
    for cell, level in zip(cells(suite), (0.5, 0.7, 0.6), strict=True):
        done_folder(tmp_path, cell, [[level, level]] * 2)
    sync(tmp_path, uri)
    terminal, text, _ = report(suite, uri, tmp_path)
    by_method = {title: row_of(text, title)[1] for title in ("Head-Tune", "FedVPT", "FedVPT-D")}
    assert by_method == {"Head-Tune": "50.00", "FedVPT": "**70.00**", "FedVPT-D": "<ins>60.00</ins>"}
    assert re.search(r"\x1b\[1m *70\.00", terminal)
    assert re.search(r"\x1b\[4m *60\.00", terminal)


@pytest.mark.parametrize(
    ("values", "ranks"),
    [
        ([70.0, 70.0, 60.0], [1, 1, 2]),
        ([70.0, 60.0, 60.0, 50.0], [1, 2, 2, 0]),
        ([None, 60.0, None], [0, 1, 0]),
        ([9.0, 10.0], [2, 1]),
        ([None, None], [0, 0]),
    ],
)
def test_ranks(values: list[float | None], ranks: list[int]) -> None:
    assert [entry.rank for entry in ranked([Entry("", value=value) for value in values])] == ranks


def test_values_that_print_alike_are_equal(tmp_path: Path, uri: str) -> None:
    suite = a_suite()
    for cell, rounds in zip(cells(suite), ([[0.5]] * 29 + [[0.501]], [[0.5]] * 30), strict=True):
        cell = dataclasses.replace(cell, protocol=dataclasses.replace(cell.protocol, rounds=30, last=30))
        done_folder(tmp_path, cell, rounds)
    sync(tmp_path, uri)
    settings = tuple(dataclasses.replace(s, protocol={"rounds": 30, "last": 30}) for s in suite.settings)
    _, text, _ = report(dataclasses.replace(suite, settings=settings), uri, tmp_path)
    assert [row_of(text, title)[1] for title in ("Head-Tune", "FedVPT")] == ["**50.00**", "**50.00**"]


def test_rows_follow_the_registry(tmp_path: Path, uri: str) -> None:
    names = registry().names()
    _, text, _ = report(a_suite(tuple(reversed(names))), uri, tmp_path)
    titles = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert titles[2:] == [registry().get(name).title for name in names]


def test_missing_cells_are_shown_as_missing(tmp_path: Path, uri: str) -> None:
    terminal, text, table = report(a_suite(("fedvpt",)), uri, tmp_path)
    assert row_of(text, "FedVPT") == ["FedVPT", "–", "–", "–"]
    assert "0 of 1 cells are finished" in terminal
    assert table["status"].tolist() == ["missing", "missing"]


def test_a_running_cell_is_missing(tmp_path: Path, uri: str) -> None:
    cell = cells(a_suite())[0]
    tracker = Tracker(uri, tmp_path)
    tracker._create(cell, 0.0, [])
    assert load_results(uri, [cell])["status"].tolist() == ["missing"]


def test_missing_seeds_are_marked(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",), (0, 1, 2))
    for cell in cells(suite)[:2]:
        done_folder(tmp_path, cell, [[0.5, 0.7]] * 2)
    sync(tmp_path, uri)
    _, text, _ = report(suite, uri, tmp_path)
    assert row_of(text, "FedVPT")[1] == "60.00±0.00 (2/3)"
    assert "only k of n seeds are finished" in text


def test_failed_cells_are_shown_with_their_reason(tmp_path: Path, uri: str) -> None:
    suite = a_suite()
    Tracker(uri, tmp_path).failed(cells(suite)[1], "loss is not finite | round 3")
    terminal, text, _ = report(suite, uri, tmp_path)
    assert row_of(text, "FedVPT")[1] == "failed"
    assert "failed: fedvpt, Feature shift, m=1, seed 0: loss is not finite | round 3" in terminal


def test_reason_in_the_run_folder_is_found(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    folder = run_folder(tmp_path, cells(suite)[0])
    folder.mkdir(parents=True)
    note_failure(folder, "out of memory")
    assert collect(suite, uri, tmp_path)[["status", "reason"]].values.tolist() == [["failed", "out of memory"]]


def test_value_without_never_sampled_clients_stands_below(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    done_folder(tmp_path, cells(suite)[0], [[0.1, 0.5, 0.6]] * 2, never=(0,))
    sync(tmp_path, uri)
    _, text, table = report(suite, uri, tmp_path)
    assert row_of(text, "FedVPT")[1:3] == ["**40.00**<br>[55.00]", "**10.00**<br>[50.00]"]
    assert "- [ ]: " in text
    assert table["mean_exclude"].tolist() == pytest.approx([55.0, 50.0])


def test_without_never_sampled_clients_there_is_one_value(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    done_folder(tmp_path, cells(suite)[0])
    sync(tmp_path, uri)
    assert "[" not in report(suite, uri, tmp_path)[1]


def test_tables_are_the_same_without_the_run_folders(tmp_path: Path, uri: str) -> None:
    suite = a_suite(seeds=(0, 1), m=(1, 2))
    for place, cell in enumerate(cells(suite)[:-1]):
        done_folder(tmp_path, cell, [[0.1 * place, 0.123]] * 2)
    sync(tmp_path, uri)
    first = report(suite, uri, tmp_path)
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(tmp_path / "report")
    second = report(suite, uri, tmp_path / "elsewhere")
    assert first[:2] == second[:2]
    pd.testing.assert_frame_equal(first[2], second[2], check_exact=True)


def test_columns_of_one_name_are_not_mixed(tmp_path: Path, uri: str) -> None:
    settings = tuple(
        Setting("Shift", "m=1", "glyph-domains", "domains:m=1", {**ROUNDS, "epochs": epochs}) for epochs in (1, 2)
    )
    suite = a_suite(("fedvpt",), settings=settings)
    for cell, level in zip(cells(suite), (0.4, 0.6), strict=True):
        done_folder(tmp_path, cell, [[level, level]] * 2)
    sync(tmp_path, uri)
    assert row_of(report(suite, uri, tmp_path)[1], "FedVPT")[1:5:2] == ["**40.00**", "**60.00**"]


def test_random_weights_are_said_first(tmp_path: Path, uri: str) -> None:
    terminal, text, _ = report(a_suite(), uri, tmp_path)
    assert "RANDOM WEIGHTS" in terminal
    assert "- RANDOM WEIGHTS" in text
    trained = dataclasses.replace(BACKBONE, weights="sha256:0123")
    _, text, _ = report(a_suite(backbone=trained), uri, tmp_path)
    assert "RANDOM WEIGHTS" not in text
    assert "Backbone micro-vit, 32 px, weights sha256:0123." in text


def test_fewer_rounds_than_ten_are_named(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",))
    done_folder(tmp_path, cells(suite)[0])
    sync(tmp_path, uri)
    assert "last 2 rounds (fewer than the papers' 10)" in report(suite, uri, tmp_path)[1]


def test_a_wide_table_is_continued_and_fits_a_hundred_columns() -> None:
    entry = Entry("65.00±7.07", "[66.00±7.07]")
    columns = [Column(f"m={m}", metric, (entry,)) for m in range(1, 7) for metric in ("Average", "Worst Local")]
    console = Console(file=io.StringIO(), width=100)
    show([Grid("Feature shift", ("Head-Tune + FT",), tuple(columns))], [], console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 100
    assert (text.count("65.00±7.07"), text.count("[66.00±7.07]")) == (12, 12)
    assert text.count("Feature shift (continued)") == 2


def test_csv_is_long_and_complete(tmp_path: Path, uri: str) -> None:
    suite = a_suite(("fedvpt",), m=(1, 2))
    done_folder(tmp_path, cells(suite)[0])
    sync(tmp_path, uri)
    table = report(suite, uri, tmp_path)[2]
    first = table.iloc[0].to_dict()
    assert (first["suite"], first["setting"], first["title"], first["metric"]) == ("tiny", "m=1", "FedVPT", "average")
    assert (first["seeds"], first["seeds_expected"], first["bytes_up"], first["bytes_down"]) == (1, 1, 200, 400)
    assert len(table) == 4  # two settings, two metrics


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (3840, "3.8 kB"), (1.5e6, "1.5 MB"), (2e9, "2.0 GB")]
)
def test_bytes(count: float, text: str) -> None:
    assert bytes_text(count) == text


def test_no_database_is_one_line_and_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no MLflow database .*fedprompt bench"):
        load_results(f"sqlite:///{tmp_path}/typo.db", cells(a_suite()))
    assert list(tmp_path.iterdir()) == []


def test_server_away_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"MLflow at http://127\.0\.0\.1:9 cannot be read"):
        load_results("http://127.0.0.1:9", cells(a_suite()))
