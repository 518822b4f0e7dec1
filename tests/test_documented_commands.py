"""Every command that README and docs print is run by a test, in a cheap form, or needs what a test does not have."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image
from support.documented import ROOT, Command, commands, fault, needs

from fedprompt.harness.cli import main

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "examples/README.md",
    *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")),
]
DOCUMENTED = [command for page in PAGES for command in commands(page, (ROOT / page).read_text())]

SUITE = """
methods = ["head-tune"]
backbone = "micro-vit"
seeds = [0, 1]
protocol = { rounds = 1, epochs = 1, last = 1 }

[[settings]]
table = "Feature shift"
dataset = "glyph-domains"
partition = "domains:m={m},shots=1,test_shots=1"
m = [6]
"""
HERE, CLI = "tests/test_documented_commands.py", "tests/harness/cli/test_cli.py"
RUN_BY = {  # the test that runs each command in a cheap form
    "fedprompt methods": f"{CLI}::test_methods_shows_one_in_detail",
    "fedprompt datasets": f"{CLI}::test_datasets_shows_a_partition",
    "fedprompt run": f"{HERE}::test_a_run_of_the_docs_runs",
    "fedprompt bench": f"{HERE}::test_bench_report_publish_and_compare",
    "fedprompt report": f"{HERE}::test_bench_report_publish_and_compare",
    "fedprompt tune": "tests/harness/tuning/test_tune.py::test_from_command_to_tuned_cells",
    "fedprompt plan": "tests/harness/cli/test_plan.py::test_the_command_names_what_tuning_would_cost",
    "fedprompt check": f"{CLI}::test_check_prints_one_line_per_property",
    "fedprompt sync": f"{CLI}::test_sync_has_nothing_left_to_do",
    "fedprompt prepare": f"{HERE}::test_prepare_gives_a_folder_a_name",
    "fedprompt ui": "tests/harness/cli/test_ui.py::test_without_runs_there_is_nothing_to_show",
    "make": "tests/test_makefile.py::test_an_environment_of_an_old_python_is_made_anew",
    "python": "tests/examples/test_examples.py::test_every_example_is_tested",
}
PLUGIN = "tests/examples/test_examples.py::test_own_method"


def test_commands_are_found_in_code_and_in_sentences() -> None:
    text = """
    FOO=1 fedprompt bench a \\
        --workers 2  # why
    make a && make b
    srun x -- fedprompt c
or `make d`."""
    assert [found.text for found in commands("x", text)] == [
        *("fedprompt bench a --workers 2", "make a", "make b", "fedprompt c", "make d")
    ]
    assert len(DOCUMENTED) > 80


@pytest.mark.parametrize("command", DOCUMENTED, ids=str)
def test_every_word_means_something(command: Command) -> None:
    assert fault(command) == ""


@pytest.mark.parametrize(
    "text",
    [
        "fedprompt bench embeded",
        "fedprompt bench embedded --worker 2",
        "fedprompt reports",
        "fedprompt run -m fedvtp -d glyph-100 -p classes:s=5",
        "fedprompt run -m fedvpt -d glyph-10 -p classes:s=5",
        "fedprompt run -m fedvpt -d glyph-100 -p classes:t=5",
        "fedprompt run -m fedvpt -d glyph-100 -p classes:s=5 --set rate=1",
        "fedprompt run -m fedvpt -d glyph-100 -p classes:s=5 --set lr=-1",
        "fedprompt plan paper --methods fedvpt,fedavg",
        "make benches",
        "make ui PROT=1",
        "python examples/none.py",
    ],
)
def test_a_wrong_command_is_found(text: str) -> None:
    assert fault(Command("planted", text)) != ""


@pytest.mark.parametrize("command", DOCUMENTED, ids=str)
def test_a_test_runs_it_unless_it_needs_more(command: Command) -> None:
    if needs(command):
        return
    words = command.text.split()
    started = " ".join(words[:2]) if words[0] == "fedprompt" else words[0]
    file, _, name = (PLUGIN if "--plugin" in words else RUN_BY[started]).partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()


RUNS = [c for c in DOCUMENTED if c.text.startswith("fedprompt run ") and "--plugin" not in c.text and not needs(c)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("results")


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("command", RUNS, ids=str)
def test_a_run_of_the_docs_runs(command: Command, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With fewer images and one round."""
    words = shlex.split(command.text)[1:]
    at = next(place for place, word in enumerate(words) if word in ("-p", "--partition")) + 1
    words[at] = re.sub(r",(test_)?shots=\d+", "", words[at]) + ",shots=1,test_shots=1"
    assert main([*words, "--rounds", "1", "--set", "epochs=1", "--out", str(results)]) == 0
    assert "Average" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("shared_cache")
def test_bench_report_publish_and_compare(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite, published = results / "mine.toml", results / "published"
    suite.write_text(SUITE)
    where = [str(suite), "--out", str(results)]
    assert main(["bench", *where, "--workers", "1"]) == 0
    assert main(["report", *where, "--publish", str(published)]) == 0
    assert main(["report", *where, "--against", str(published)]) == 0
    assert (published / "tables.csv").read_text() == (results / "report" / "mine" / "tables.csv").read_text()
    assert "2 numbers compared, 2 equal to the last digit" in capsys.readouterr().out


def test_prepare_gives_a_folder_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for shade in range(5):
            Image.new("RGB", (8, 8), (shade, 0, 0)).save(tmp_path / label / f"{shade}.png")
    assert main(["prepare", f"folder:{tmp_path}", "--name", "pets"]) == 0
    assert main(["datasets", "pets"]) == 0
    assert "pets: 10 images of 8 x 8" in capsys.readouterr().out
