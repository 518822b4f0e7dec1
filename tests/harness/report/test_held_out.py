"""Base to novel and one domain left out, from the command line to the page, on micro-clip."""

from pathlib import Path

import pytest
from support.report_suites import row_of

from fedprompt.harness.cli import main

SUITE = """
title = "Held out"
methods = ["zs-clip", "promptfl", "head-tune"]
control = "zs-clip"
backbone = "micro-clip"
seeds = [0, 1]

[protocol]
rounds = 1
epochs = 1
batch_size = 16
last = 1

[params.all]
length = 4

[[settings]]
table = "Base to novel"
kind = "novel"
label = "glyphs"
dataset = "glyph-domains"
partition = "disjoint:clients=3,shots=2,test_shots=6,novel=half"

[[settings]]
table = "Left out"
kind = "target"
dataset = "glyph-domains"
partition = "domains:m=1,shots=1,test_shots=2,target={target}"
target = ["print"]
"""


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_a_suite_of_held_out_classes_and_domains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "held-out.toml").write_text(SUITE)
    assert main(["bench", str(tmp_path / "held-out.toml"), "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    report = (tmp_path / "out" / "report" / "held-out" / "report.md").read_text()
    novel, target = report.split("## Base to novel")[1], report.split("## Left out")[1]
    assert row_of(novel, "Method")[1:] == [
        *("glyphs<br>Average", "glyphs<br>Base", "glyphs<br>Novel", "glyphs<br>Gain", "glyphs<br>Harmonic Mean")
    ]
    assert row_of(novel, "ZS-CLIP")[4] == "control"
    assert row_of(novel, "PromptFL")[4][0] in "+−"
    assert row_of(novel, "No prompt")[3:] == ["n/a", "–", "n/a"]
    zero_shot = float(row_of(target, "ZS-CLIP")[1].split("±")[0])
    assert zero_shot > 30  # three times chance: print is what micro-clip knows best
    assert "Novel: each client's model on all test images of the classes" in report
