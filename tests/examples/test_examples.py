"""Every example does what its first lines say."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.report_suites import every_kind, run_all
from support.run_folders import new_store

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str | Path) -> str:
    command = [sys.executable, EXAMPLES / name, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("results")
    uri = new_store(out)
    run_all(every_kind(), uri, out)
    return out, uri


@pytest.mark.slow
def test_v_sweep(results: tuple[Path, str], tmp_path: Path) -> None:
    picture = tmp_path / "v.png"
    assert run("v_sweep.py", results[1], picture).startswith("4 runs")
    assert Image.open(picture).width == 750


@pytest.mark.slow
def test_records_to_pandas(results: tuple[Path, str]) -> None:
    lines = run("records_to_pandas.py", results[0]).splitlines()
    assert any(line.split()[:1] == ["glyph-domains"] for line in lines)


@pytest.mark.slow
def test_own_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for number in range(12):
            pixels = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{number}.png")
    text = run("own_images.py", tmp_path / "photos", tmp_path / "results")
    assert text.splitlines()[:2] == ["head-tune finished", "fedvpt finished"]


@pytest.mark.slow
def test_own_method() -> None:
    """As its first lines say; in a process of its own, because a plugin stays registered."""
    command = [
        sys.executable,
        "-m",
        "fedprompt.harness.cli",
        "check",
        "fedvpt-prox",
        "--plugin",
        EXAMPLES / "own_method.py",
    ]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_every_example_is_tested() -> None:
    text = Path(__file__).read_text()
    assert all(path.name in text for path in EXAMPLES.glob("*.py"))
