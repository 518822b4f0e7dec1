"""Start-up: help, listings and answers to mistakes do not wait for libraries they do not need."""

import subprocess
import sys

import pytest

from fedprompt.harness.cli import COMMANDS, build_parser

HEAVY = {"torch", "torchvision", "timm", "mlflow", "matplotlib", "optuna", "pandas", "scipy", "ray", "safetensors"}
SLOW_FOR_HELP = HEAVY | {"numpy", "rich", "PIL"}
CODE = """
import sys, time
from fedprompt.harness.cli import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(*sys.modules)
print(time.process_time())
"""


def start(*words: str) -> tuple[str, set[str], float]:
    """What a fresh process prints and imports, and its seconds of CPU."""
    result = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True, check=True)
    *printed, modules, seconds = result.stdout.splitlines()
    return "\n".join(printed) + result.stderr, set(modules.split()), float(seconds)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--help"], "run all cells of a suite"),
        (["bench", "--help"], "examples:"),
        (["--version"], "fedprompt 0"),
        (["benhc", "embedded"], "Did you mean bench?"),
        (["bench", "embedded", "--workesr", "2"], "Did you mean --workers?"),
        (["bench", "embedded", "--seed", "2"], "Did you mean --seeds?"),
        (["--versoin"], "Did you mean --version?"),
        (["bench", "embedded", "--executor", "lcoal"], "Did you mean local?"),
        ([], "a command is missing"),
    ],
)
def test_help_and_mistakes_are_answered_at_once(words: list[str], expected: str) -> None:
    printed, modules, seconds = start(*words)
    assert expected in printed
    assert modules & SLOW_FOR_HELP == set()
    assert seconds < 0.4


def test_data_sets_are_listed_without_torch() -> None:
    printed, modules, _ = start("datasets")
    assert "glyph-domains" in printed
    assert modules & HEAVY == set()


def test_methods_are_listed_without_what_they_do_not_need() -> None:
    printed, modules, _ = start("methods")
    assert "fedvpt" in printed
    assert modules & {"mlflow", "matplotlib", "optuna", "ray"} == set()


def test_every_command_is_a_module_of_its_name() -> None:
    help_text = build_parser().format_help()
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        assert callable(getattr(command, name))
        assert f"    {name} " in help_text
