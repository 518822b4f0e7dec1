"""Set-up: what make does before it downloads anything. No test installs a package."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def a_program(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return path


@pytest.fixture
def old_python(tmp_path: Path) -> Path:
    """A Python 3.9, as far as make can tell."""
    return a_program(tmp_path / "python3.9", 'test "$1" = --version && echo Python 3.9.2 && exit 0', "exit 1")


@pytest.fixture
def new_python(tmp_path: Path) -> Path:
    """A Python that is new enough, makes environments of itself, and installs nothing."""
    program = tmp_path / "python3.11"
    return a_program(
        program,
        'echo "$@" >> "$(dirname "$0")/calls"',
        f'for last; do :; done; if [ "$2" = venv ]; then mkdir -p "$last/bin"; cp {program} "$last/bin/python"; fi',
    )


def setup(python: Path, environment: Path) -> subprocess.CompletedProcess[str]:
    """`make setup` of this checkout into ``environment``."""
    variables = [f"PYTHON={python}", f"VENV={environment}"]
    return subprocess.run(["make", "setup", *variables], cwd=ROOT, capture_output=True, text=True, env=dict(os.environ))


def test_an_old_python_is_refused_before_anything_is_made(tmp_path: Path, old_python: Path) -> None:
    done = setup(old_python, tmp_path / "env")
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "is Python 3.9.2; name another: make setup PYTHON=python3.11" in done.stderr
    assert not (tmp_path / "env").exists()


def test_an_environment_of_an_old_python_is_made_anew(tmp_path: Path, old_python: Path, new_python: Path) -> None:
    environment = tmp_path / "env"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text("version = 3.9.2\n")
    old_python.rename(environment / "bin" / "python")
    done = setup(new_python, environment)
    assert done.returncode == 0, done.stderr
    assert "it is created again" in done.stdout
    assert "-m venv --clear" in (tmp_path / "calls").read_text()
    assert (environment / ".fedprompt-checkout").read_text() == str(ROOT)


def test_an_environment_that_ran_another_checkout_says_so(tmp_path: Path, new_python: Path) -> None:
    environment = tmp_path / "env"
    a_program(environment / "bin" / "python", "exit 0")
    (environment / ".fedprompt-checkout").write_text("/another/checkout")
    done = setup(new_python, environment)
    assert done.returncode == 0, done.stderr
    assert f"ran the checkout /another/checkout; from now on it runs this one ({ROOT})" in done.stdout
    assert (
        f"call {environment}/bin/fedprompt, or plain fedprompt after: source {environment}/bin/activate" in done.stdout
    )
