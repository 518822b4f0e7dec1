"""A plugin that exits cleanly never ends a command in silence: the exception is named and the exit code says so."""

from pathlib import Path

import pytest

from fedprompt.harness.cli import main

PLUGIN = """
from fedprompt.methods.fedvpt import FedVPT

class Quits(FedVPT):
    name, order = "quits-{kind}", 900
    def loss(self, theta, batch):
        raise {kind}
"""
KINDS = ("SystemExit", "KeyboardInterrupt", "GeneratorExit")
SUITE = """
methods = ["quits-{kind}", "fedvpt"]
seeds = [0]
backbone = "micro-vit"
[protocol]
rounds = 1
epochs = 1
batch_size = 8
eval_every = 1
last = 1
[[settings]]
table = "t"
dataset = "glyph-domains"
partition = "domains:m=1,shots=1"
"""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def plugin(kind: str, tmp_path: Path) -> str:
    file = tmp_path / f"quits_{kind}.py"
    file.write_text(PLUGIN.format(kind=kind))
    return str(file)


@pytest.fixture
def suite(kind: str, tmp_path: Path) -> str:
    file = tmp_path / "quits.toml"
    file.write_text(SUITE.format(kind=kind))
    return str(file)


def test_an_exit_at_import_is_one_line(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "leaves.py"
    file.write_text(f"raise {kind}('see you')\n")
    assert main(["check", "leaves", "--plugin", str(file)]) == 2
    assert capsys.readouterr().err == f"fedprompt: plugin {str(file)!r} failed to import: {kind}: see you\n"


def test_check_fails_the_properties_of_a_method_that_exits(
    kind: str, plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"quits-{kind}", "--plugin", plugin]) == 1
    printed = capsys.readouterr().out
    assert f": {kind}" in printed
    assert "properties do not hold" in printed


def test_plan_names_the_method_that_exits(
    kind: str, plugin: str, suite: str, tmp_path: Path, shared_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", suite, "--plugin", plugin, "--out", str(tmp_path / "out"), "--flops", "1e12"]
    assert main(words) == 2
    assert f"method 'quits-{kind}' tried to end the process" in capsys.readouterr().err


@pytest.mark.slow
def test_bench_fails_the_cell_alone(
    kind: str, plugin: str, suite: str, tmp_path: Path, shared_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", suite, "--plugin", plugin, "--out", str(tmp_path / "out"), "--workers", "1", "--untuned"]
    assert main(words) == 1
    printed = capsys.readouterr()
    assert kind in printed.out + printed.err
    assert len(list((tmp_path / "out").glob("runs/*/done"))) == 1


def test_a_command_that_is_made_to_exit_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedprompt.methods.registry", lambda: (_ for _ in ()).throw(SystemExit(0)))
    assert main(["methods"]) == 1
    assert "tried to end the command (SystemExit: 0)" in capsys.readouterr().err
