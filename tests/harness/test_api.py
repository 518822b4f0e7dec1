"""The Python interface: documented examples run, names are lazy, and both sources give the same frames."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.run_folders import a_cell, done_folder, new_store

import fedprompt.harness as api
from fedprompt.harness import UserError, read_records, read_summaries, sync
from fedprompt.harness.results import draw_accuracy

DOCUMENT = Path(__file__).parents[2] / "docs" / "api.md"


@pytest.mark.slow
def test_documented_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared_cache: Path) -> None:
    monkeypatch.chdir(tmp_path)
    new_store(tmp_path / "results")
    names: dict[str, Any] = {}
    for example in re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL):
        exec(example, names)
    assert [outcome.error for outcome in names["outcomes"]] == [""] * 4
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert (names["recorded"], names["failed"]) == (6, 0)
    assert names["page"].exists()
    assert names["broken"] == []


def test_every_public_name_is_there_and_documented() -> None:
    text = DOCUMENT.read_text()
    for name in api.__all__:
        assert getattr(api, name).__name__ == name
        assert f"| `{name}" in text
    assert set(api.__all__) <= set(dir(api))
    with pytest.raises(AttributeError, match="no attribute 'laod_suite'"):
        _ = api.laod_suite


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, fedprompt.harness; print({'torch', 'pandas', 'mlflow', 'numpy'} & set(sys.modules))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "set()"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for method, seed, accuracy in (("fedvpt", 0, 0.5), ("fedvpt", 1, 0.7), ("head-tune", 0, 0.9)):
        done_folder(tmp_path, a_cell(method, seed=seed), [[accuracy, accuracy - 0.2]] * 3)
    return tmp_path


def test_frames_from_folders(results: Path) -> None:
    summaries, records = read_summaries(results), read_records(results)
    assert list(zip(summaries["method"], summaries["seed"], summaries["average"].round(3), strict=True)) == [
        ("fedvpt", 0, 0.4),
        ("fedvpt", 1, 0.6),
        ("head-tune", 0, 0.8),
    ]
    assert summaries["params.lr"].tolist() == [a_cell(method).params["lr"] for method in summaries["method"]]
    assert len(records) == 3 * 3 * 2
    first = records.iloc[0]
    assert (first["method"], first["round"], first["client"], first["accuracy"]) == ("fedvpt", 1, 0, 0.5)
    assert (first["partition"], first["partition_hash"]) == ("domains:m=1", "0123456789abcdef")


def test_frames_from_mlflow_are_those_from_folders(results: Path) -> None:
    uri = new_store(results)
    assert sync(results, uri) == (3, 0, 0)
    pd.testing.assert_frame_equal(read_summaries(uri), read_summaries(results))
    pd.testing.assert_frame_equal(read_records(uri), read_records(str(results)))


def test_only_the_cells_that_are_asked_for(results: Path) -> None:
    assert read_summaries(results, [a_cell("head-tune")])["method"].tolist() == ["head-tune"]
    with pytest.raises(UserError, match="no finished runs in"):
        read_records(results, [a_cell("fedvpt", seed=7)])


def test_a_database_that_does_not_exist_is_named_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no MLflow database .*nothing\.db"):
        read_records(f"sqlite:///{tmp_path}/nothing.db")
    assert list(tmp_path.iterdir()) == []


def test_the_figure_has_a_line_per_method(results: Path) -> None:
    figure = draw_accuracy(read_records(results))
    (ax,) = figure.axes
    assert {str(line.get_label()): line.get_ydata().tolist() for line in ax.lines} == {  # type: ignore[union-attr]
        "FedVPT": pytest.approx([50, 50, 50]),
        "No prompt": pytest.approx([80, 80, 80]),
    }
