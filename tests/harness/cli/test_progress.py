"""What is shown while cells run."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.progress import Progress
from support.run_folders import a_cell, done_folder

from fedprompt.core.progress import progress
from fedprompt.harness.cli._progress import CellBars
from fedprompt.harness.running.run import RoundProgress


def test_without_a_terminal_every_cell_that_ends_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, cell, variant, broken = (a_cell(seed=seed) for seed in range(4))
    with progress() as bars:
        shown = CellBars(
            bars, [before, cell, variant, broken], {before.hash}, {variant.hash: variant.named("long-prompt")}, dict
        )
        shown.finish(done_folder(tmp_path, before))
        for one in (cell, variant):
            shown.round(one, RoundProgress(one.hash, 1, 3, {}))
            shown.finish(done_folder(tmp_path, one))
        shown.failed(broken, "no memory")
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "2/4 FedVPT m=1 s1 local: Average 50.00 %",
        "3/4 long-prompt m=1 s2 local: Average 50.00 %",
        "failed: FedVPT m=1 s3 local: no memory",
    ]
    assert "about" in lines[0]


def test_a_finished_cell_that_is_not_believed_any_more_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    before, cell = a_cell(seed=0), a_cell(seed=1)
    with progress() as bars:
        shown = CellBars(bars, [before, cell], {before.hash}, {}, dict)
        shown.failed(before, "records.csv is not what the finished run wrote")
        assert bars.tasks[0].completed == 1
    line = "failed: FedVPT m=1 s0 local: records.csv is not what the finished run wrote"
    assert capsys.readouterr().err.splitlines() == [line]


def test_count_and_time_fit_eighty_columns_whatever_the_label() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    bars = Progress(*progress().columns, console=console)
    bars.add_task("a method with a name " * 10, total=150, completed=20, until=None)
    console.print(bars.get_renderable())
    assert isinstance(console.file, io.StringIO)
    [line] = console.file.getvalue().splitlines()
    assert "20/150" in line
    assert "-:--:--" in line
