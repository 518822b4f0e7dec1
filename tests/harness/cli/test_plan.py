"""`fedprompt plan`: what it says besides the tables."""

from pathlib import Path

import pytest

from fedprompt.harness.cli import main
from fedprompt.harness.running.suite_file import FOLDER


def test_the_command_names_what_tuning_would_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "smoke", "--methods", "fedvpt", "--flops", "1e9", "--out", str(tmp_path)]) == 0
    assert "Not included: `fedprompt tune smoke`, 1 study with 9 cells in all" in capsys.readouterr().out


def test_the_cost_of_tuning_includes_finals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = tmp_path / "mine.toml"
    suite.write_text((FOLDER / "smoke.toml").read_text() + "\n[tune]\nfinals = [150, 151]\n")
    assert main(["plan", str(suite), "--methods", "fedvpt", "--flops", "1e9", "--out", str(tmp_path)]) == 0
    assert "1 study with 15 cells in all" in capsys.readouterr().out  # nine, and two of each of three finalists
