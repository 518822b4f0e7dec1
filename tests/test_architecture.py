"""The import contract of pyproject.toml holds, notices a wrong import, and covers every part of the harness."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("core", "backbones", "datasets", "methods", "harness")
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
LINT = "from importlinter.cli import lint_imports_command as lint; lint()"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A copy of the packages that a test may spoil."""
    for name in PACKAGES:
        shutil.copytree(
            ROOT / name, tmp_path / "fedprompt" / name, ignore=shutil.ignore_patterns("__pycache__", "assets")
        )
    return tmp_path


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT, "--config", str(ROOT / "pyproject.toml"), "--no-cache", "--no-logo"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_packages_keep_the_contract(packages: Path) -> None:
    result = lint(packages)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        ("methods/fedvpt.py", "fedprompt.harness.running.cell"),
        ("backbones/backbone.py", "fedprompt.methods"),
        ("datasets/glyphs.py", "fedprompt.backbones"),
        ("datasets/glyphs.py", "fedprompt.methods"),
        ("core/__init__.py", "fedprompt.datasets"),
        ("harness/federation/__init__.py", "fedprompt.harness.running"),
        ("harness/planning/__init__.py", "fedprompt.harness.tuning"),
    ],
)
def test_a_wrong_import_breaks_the_contract(packages: Path, importer: str, imported: str) -> None:
    path = packages / "fedprompt" / importer
    path.write_text(f"{path.read_text()}\n\ndef _hidden() -> None:\n    import {imported}\n")
    result = lint(packages)
    assert result.returncode == 1
    module = importer.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    assert f"fedprompt.{module} -> {imported}" in result.stdout


def test_private_modules_are_imported_within_their_own_package_only() -> None:
    pattern = re.compile(r"^\s*(?:from|import) fedprompt\.([a-z_.]*[a-z])(?:\.| import )(_\w+)", re.MULTILINE)
    imports = [
        (path, ROOT / owner.replace(".", "/"), name)
        for top in PACKAGES
        for path in (ROOT / top).rglob("*.py")
        for owner, name in pattern.findall(path.read_text())
    ]
    assert len(imports) > 100
    assert [(path, name) for path, owner, name in imports if owner not in path.parents] == []


def test_no_package_imports_what_is_not_installed() -> None:
    scripts = "|".join(path.stem for folder in ("benchmarks", "tools") for path in (ROOT / folder).glob("*.py"))
    wrong = re.compile(rf"^\s*(?:from|import) (?:{scripts}|support)\b", re.MULTILINE)
    assert wrong.search("def f():\n    from excerpt import renew")
    files = [path for top in PACKAGES for path in (ROOT / top).rglob("*.py")]
    assert [path for path in files if wrong.search(path.read_text())] == []


def test_the_contract_names_every_part_of_the_harness() -> None:
    layers = " ".join(PYPROJECT["importlinter"]["contracts"][0]["layers"])
    named = {name for name in layers.split() if name not in ("|", ":")}
    parts = {f"fedprompt.harness.{path.parent.name}" for path in ROOT.glob("harness/*/__init__.py")}
    tops = {f"fedprompt.{name}" for name in PACKAGES if name != "harness"}
    assert named == parts | tops


def test_every_package_is_installed() -> None:
    folders = {path.parent for top in PACKAGES for path in (ROOT / top).rglob("__init__.py")}
    names = {f"fedprompt.{folder.relative_to(ROOT).as_posix().replace('/', '.')}" for folder in folders}
    assert names | {"fedprompt.paper", "fedprompt.tuned"} == set(PYPROJECT["setuptools"]["packages"])


@pytest.mark.parametrize(("page", "least"), [("reliability.md", 30), ("clip-tests.md", 250)])
def test_every_promise_names_a_test_that_exists(page: str, least: int) -> None:
    """As `FILE::NAME`, or by name alone after `FILE`."""
    named, file = [], ""
    pattern = r"`(tests/[\w/]+\.py)(?:::(\w+))?`|`(test_\w+)`"
    for path, name, following in re.findall(pattern, (ROOT / "docs" / page).read_text()):
        file = path or file
        named += [(file, name or following)] if name or following else []
    assert len(named) > least
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []
