"""The command line: what people type, rightly and wrongly."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.report_suites import row_of
from support.run_folders import done_folder, new_store

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.core.errors import UserError
from fedprompt.harness.cli import COMMANDS, build_parser, main
from fedprompt.harness.cli import _progress as progress_module
from fedprompt.harness.cli._options import split_settings
from fedprompt.harness.report.parity import parity_of_methods
from fedprompt.harness.running import session as session_module
from fedprompt.harness.running import suite as suite_module
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.execution import CellOutcome
from fedprompt.methods import registry

pytestmark = pytest.mark.usefixtures("shared_cache")
RUN = ["run", "--method", "fedvpt", "--dataset", "glyph-domains", "--partition", "domains:m=2"]
SMALL = ["--set", "rounds=1", "--set", "epochs=1", "--weights", "random"]


def replaced(**options: str) -> list[str]:
    """RUN with some options changed."""
    words = list(RUN)
    for name, value in options.items():
        words[words.index(f"--{name}") + 1] = value
    return words


BAD_INPUT = {
    "unknown method": (replaced(method="fedvtp"), "'fedvpt'"),
    "unknown data set": (replaced(dataset="glyph-domain"), "'glyph-domains'"),
    "unknown partition": (replaced(partition="domain:m=2"), "domains"),
    "unknown key of a partition": (replaced(partition="domains:n=2"), "'n'"),
    "m above the number of domains": ([*replaced(partition="domains:m=7"), *SMALL], "7"),
    "slots that do not divide": ([*replaced(dataset="glyph-100", partition="classes:s=3,clients=7"), *SMALL], "7"),
    "unknown key": ([*RUN, "--set", "lenght=2"], "'length'"),
    "not KEY=VALUE": ([*RUN, "--set", "length"], "KEY=VALUE"),
    "a key without a value": ([*RUN, "--set", "length="], "length"),
    "value out of range": ([*RUN, "--set", "lr=-0.1"], "at least 0"),
    "value of the wrong type": ([*RUN, "--set", "length=ten"], "whole number"),
    "value not among the choices": ([*RUN, "--set", "head=locl"], "'local'"),
    "unknown policy": ([*RUN, "--policy", "globl"], "'global'"),
    "zero rounds": ([*RUN, "--rounds", "0"], "at least 1"),
    "negative seed": ([*RUN, "--seed", "-1"], "negative"),
    "missing data": ([*replaced(dataset="cifar100", partition="classes:s=10"), *SMALL], "cifar100"),
    "missing weights": ([*RUN, "--weights", "nowhere.safetensors"], "nowhere.safetensors"),
    "weights of no known kind": ([*RUN, "--weights", "model.onnx"], ".safetensors"),
    "unknown backbone": ([*RUN, "--backbone", "vit_tiny_patch16_244"], "vit_tiny_patch16_224"),
    "image size that patches do not tile": ([*RUN, "--image-size", "33"], "patch size"),
    "unknown device": ([*RUN, *SMALL, "--device", "abacus"], "abacus"),
    "zero threads": ([*RUN, *SMALL, "--threads", "0"], "at least 1"),
    "missing plugin": ([*RUN, "--plugin", "nowhere.py"], "nowhere.py"),
    "unknown suite": (["bench", "smokee"], "'smoke'"),
    "unknown option": ([*RUN, "--sed", "1"], "--seed"),
    "a suite file that is not there": (["bench", "mine.toml"], "there is no suite file 'mine.toml'"),
    "a field that the protocol lacks": ([*RUN, "--set", "protocol.lr=0.1"], "'protocol.lr'"),
    "more warm-up than rounds": ([*RUN, "--set", "rounds=2", "--set", "warmup=2"], "use at most 1"),
    "another name of lr": ([*RUN, "--set", "learning_rate=0.1"], "Did you mean 'lr'?"),
    "a model that is no plain ViT": ([*RUN, "--backbone", "resnet18"], "vit_tiny_patch16_224"),
    "unknown command": (["benhc"], "bench"),
    "method to check": (["check", "fedvtp"], "'fedvpt'"),
    "method to show": (["methods", "fedvtp"], "'fedvpt'"),
    "data set to show": (["datasets", "glyph-10"], "'glyph-100'"),
    "pretrained weights of another kind": (["pretrain", "--out", "x.bin"], ".safetensors"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_writes_nothing(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected = BAD_INPUT[case]
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert expected in printed.err
    assert len(printed.err.strip().splitlines()) == 1, printed.err
    assert list(tmp_path.iterdir()) == []


def test_unwritable_output_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    code = main([*replaced(partition="domains:m=1,shots=1"), *SMALL, "--out", str(tmp_path / "file")])
    assert code != 0
    assert "--out DIR" in capsys.readouterr().err


def test_weights_of_another_model_name_the_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import safetensors.torch
    import torch

    path = tmp_path / "wrong.safetensors"
    safetensors.torch.save_file({"conv1.weight": torch.zeros(1)}, path)
    assert main([*RUN, "--set", "rounds=1", "--weights", str(path), "--out", str(tmp_path / "out")]) != 0
    message = capsys.readouterr().err
    assert "missing keys blocks.0" in message
    assert "unexpected keys conv1.weight" in message
    assert not (tmp_path / "out").exists()


def test_junk_weights_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "junk.pth").write_bytes(b"this is junk")
    assert main([*RUN, "--weights", str(tmp_path / "junk.pth"), "--out", str(tmp_path / "out")]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "not a readable .pth file of tensors by name" in line
    assert "fetch the file again" in line


def test_a_loss_that_is_one_number_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "scalar_for_cli.py"
    plugin.write_text(
        "from fedprompt.methods.head_tune import HeadTune\n"
        "class Scalar(HeadTune):\n"
        "    name = 'scalar-for-cli'\n"
        "    def loss(self, theta, batch):\n"
        "        return super().loss(theta, batch).sum()\n"
    )
    new_store(tmp_path)
    words = replaced(method="scalar-for-cli", partition="domains:m=1,shots=1")
    assert main([*words, *SMALL, "--plugin", str(plugin), "--out", str(tmp_path)]) == 1
    assert "has shape (), not one value per client (6,)" in capsys.readouterr().err


def test_results_follow_the_umask(tmp_path: Path) -> None:
    new_store(tmp_path)
    before = os.umask(0o022)
    try:
        words = replaced(method="head-tune", partition="domains:m=1,shots=1")
        assert main([*words, *SMALL, "--out", str(tmp_path)]) == 0
    finally:
        os.umask(before)
    [folder] = (tmp_path / "runs").iterdir()
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir() if path.name != ".lock"}
    assert set(modes.values()) == {"0o644"}, modes


def test_suites_and_all_options_have_help() -> None:
    parser = build_parser()
    [commands] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for name, command in commands.choices.items():
        assert [action.dest for action in command._actions if not action.help] == [], name
    assert "smoke" in commands.choices["bench"].format_help()


@pytest.fixture
def finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """One cell run through the command line."""
    words = replaced(method="head-tune", partition="domains:m=1,shots=2")
    new_store(tmp_path)
    assert main([*words, *SMALL, "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    return tmp_path


def test_run_leaves_a_finished_run_and_a_record(finished: Path) -> None:
    (folder,) = (finished / "runs").iterdir()
    assert (folder / "done").exists()
    assert (finished / "mlflow.db").exists()


def test_sync_has_nothing_left_to_do(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sync", "--out", str(finished)]) == 0
    assert capsys.readouterr().out.strip() == "recorded 0, already there 1, failed 0"


def test_what_is_typed_reaches_the_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a file says, and no default, comes after it."""
    cells: list[Cell] = []

    def refuse(planned: list[Cell], *_: object) -> None:
        cells.extend(planned)
        raise UserError("seen")

    monkeypatch.setattr(progress_module, "run_and_record", refuse)
    typed = ["--seed", "7", "--rounds", "3", "--set", "lr=0.25", "--set", "length=4", "--set", "epochs=2"]
    assert main([*RUN, *typed, "--policy", "global", "--out", str(tmp_path)]) != 0
    (cell,) = cells
    assert (cell.method, cell.dataset, cell.seed) == ("fedvpt", "glyph-domains", 7)
    assert (cell.params["lr"], cell.params["length"]) == (0.25, 4)
    assert (cell.protocol.rounds, cell.protocol.epochs, cell.protocol.head) == (3, 2, "global")


@pytest.mark.parametrize(
    ("settings", "own", "protocol"),
    [
        (["clip=2"], 2.0, 0.0),  # of the generator's gradient
        (["protocol.clip=2"], 50.0, 2.0),
        (["protocol.clip=2", "clip=3", "warmup=1"], 3.0, 2.0),
    ],
)
def test_a_name_that_the_method_has_too_can_mean_the_protocols(
    settings: list[str], own: float, protocol: float
) -> None:
    params, rules = split_settings("pfedpg", settings)
    cell = make_cell(
        "pfedpg", "glyph-domains", "domains:m=1", BackboneSpec("micro-vit", "random", 32), 0, params, rules
    )
    assert (cell.params["clip"], cell.protocol.clip) == (own, protocol)


def test_a_second_run_says_that_it_is_finished(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = replaced(method="head-tune", partition="domains:m=1,shots=2")
    assert main([*words, *SMALL, "--out", str(finished)]) == 0
    printed = capsys.readouterr()
    assert "finished already" in printed.err
    assert "Average" in printed.out


def test_methods_lists_family_paper_parity_and_payload_of_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert all(name in rows for name in registry().names())
    assert rows["sgpt"].split()[1:5] == ["head", "CVPR", "2024", parity_of_methods()["sgpt"].brief]
    assert rows["pfeddc"].split()[1:5] == ["text", "arXiv", "2506.21144", "equations"]
    assert rows["fedvpt"].split()[-1] == "T*d"


@pytest.mark.parametrize(("name", "words"), [("fedvpt", "KMnP/vpt 4410440"), ("pfedprompt", "stand in")])
def test_methods_says_how_near_one_is_to_its_authors_code(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["methods", name]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("parity:")]
    assert words in line


@pytest.mark.parametrize("name", registry().names())
def test_methods_shows_one_in_detail(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", name]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("paper:", "parity:", "head:", "payload:", "server:", "personal:", " = "))


def test_datasets_shows_a_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "who.png"
    assert main(["datasets", "glyph-domains", "--partition", "domains:m=2", "--plot", str(picture)]) == 0
    printed = capsys.readouterr().out
    assert "6 clients with 600 to 600 training and 300 to 300 test images" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_check_prints_one_line_per_property(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "head-tune"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) > 10
    assert all(line.startswith("ok") for line in lines[:-1])
    assert lines[-1] == "head-tune: every property holds"


def test_check_of_a_broken_plugin_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "broken_for_cli.py"
    plugin.write_text(
        "from fedprompt.methods.head_tune import HeadTune\n"
        "class Broken(HeadTune):\n"
        "    name = 'broken-for-cli'\n"
        "    def predict(self, theta, batch):\n"
        "        return super().predict(theta, batch).repeat(1, 1, 2)\n"
    )
    assert main(["check", "broken-for-cli", "--plugin", str(plugin)]) == 1
    assert "FAIL" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("command", [module.__name__.rpartition(".")[2] for module in COMMANDS])
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert "examples:" in capsys.readouterr().out


Mini = tuple[list[str], list[Cell]]


@pytest.fixture
def mini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mini:
    """Words that bench two settings, two methods and two seeds, with finished folders for training; cells made."""
    suite = tmp_path / "mini.toml"
    suite.write_text(
        'backbone = "micro-vit"\nseeds = [0, 1]\nmethods = ["head-tune", "fedvpt"]\n[protocol]\nrounds = 2\nlast = 2\n'
        '[[settings]]\ntable = "T"\ndataset = "glyph-domains"\npartition = "domains:m={m}"\nm = [1, 6]\n'
    )
    made_cells: list[Cell] = []

    def counted(*args: Any) -> Cell:
        made_cells.append(make_cell(*args))
        return made_cells[-1]

    def finish_at_once(cells: list[Cell], environment: RunEnvironment, *_: Any) -> Iterator[CellOutcome]:
        for cell in cells:
            yield CellOutcome(cell, done_folder(environment.out, cell))

    monkeypatch.setattr(suite_module, "make_cell", counted)
    monkeypatch.setattr(session_module, "execute", finish_at_once)
    monkeypatch.setattr(session_module, "data_checksum", lambda *_: "glyphs")
    new_store(tmp_path)
    return ["bench", str(suite), "--out", str(tmp_path), "--workers", "1"], made_cells


def test_bench_expands_its_suite_once_and_reports(
    tmp_path: Path, mini: Mini, capsys: pytest.CaptureFixture[str]
) -> None:
    words, made_cells = mini
    assert main(words) == 0
    assert len(made_cells) == 8
    assert (tmp_path / "report" / "mini" / "index.html").exists()
    assert "8 of 8 cells" not in capsys.readouterr().err
    assert main(words) == 0
    assert "8 of 8 cells are finished already" in capsys.readouterr().err
    assert main([*words, "--methods", "fedvpt"]) == 0
    assert "4 of 4 cells are finished already" in capsys.readouterr().err
    assert "| No prompt |" in (tmp_path / "report" / "mini" / "report.md").read_text()  # still the whole suite's


def test_bench_of_some_methods_keeps_the_other_rows_of_the_report(tmp_path: Path, mini: Mini) -> None:
    words, _ = mini
    for method, unfinished in (("head-tune", "FedVPT"), ("fedvpt", "")):
        assert main([*words, "--methods", method]) == 0
        report = (tmp_path / "report" / "mini" / "report.md").read_text()
        for title in ("No prompt", "FedVPT"):
            assert row_of(report, title)[1] == ("–" if title == unfinished else "50.00±0.00")


def test_a_failed_cell_is_named_and_the_exit_code_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(*_: object) -> None:
        raise RuntimeError("the [prompt] exploded")

    monkeypatch.setattr("fedprompt.methods.head_tune.HeadTune.loss", explode)
    new_store(tmp_path)
    words = [*replaced(method="head-tune", partition="domains:m=1,shots=2"), *SMALL, "--out", str(tmp_path)]
    assert main(words) == 1
    assert "RuntimeError: the [prompt] exploded" in capsys.readouterr().err


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", "report.md")

    monkeypatch.setattr("fedprompt.harness.recording.tracker.sync", full)
    assert main(["sync"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line == "fedprompt: No space left on device: report.md; mend that, then run the command again"
