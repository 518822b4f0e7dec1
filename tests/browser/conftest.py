"""A small suite, run and reported once, and a browser to look at it with."""

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SUITE = """
title = "A small suite"
methods = ["head-tune", "fedvpt", "pfedbayespt"]
backbone = "micro-vit"
seeds = [0, 1]
protocol = { rounds = 2, epochs = 1, last = 1, eval_every = 1, sweep = true }

[[settings]]
table = "Feature shift (glyph-domains, m styles per client)"
dataset = "glyph-domains"
partition = "domains:m={m},shots=1,test_shots=2"
m = [2, 6]
published = "DomainNet"

[[settings]]
table = "V-sweep"
kind = "vsweep"
dataset = "glyph-domains"
partition = "domains:m={m},shots=1,test_shots=2"
m = [6]
methods = ["pfedbayespt"]
"""


@pytest.fixture(scope="session")
def chromium() -> tuple[str, str]:
    """The browser and its driver; tests are skipped where one of them, or selenium, is not installed."""
    pytest.importorskip("selenium")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("chromium and chromedriver are not installed; `make test-browser` installs them")
    return program, driver


@pytest.fixture(scope="session")
def results(chromium: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of the suite, made by the command that users type."""
    root = tmp_path_factory.mktemp("browser")
    (root / "small.toml").write_text(SUITE)
    command = [sys.executable, "-m", "fedprompt.harness.cli", "bench", "small.toml", "--workers", "1"]
    subprocess.run(command, cwd=root, check=True, capture_output=True, timeout=600)
    return root / "results"


@pytest.fixture(scope="session")
def mlflow_ui(results: Path) -> Iterator[str]:
    """The address of MLflow's own pages on the results."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = f"sqlite:///{results / 'mlflow.db'}"
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(
        [*command, "--backend-store-uri", store], stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(30)


@pytest.fixture
def browser(chromium: tuple[str, str]) -> Iterator[Any]:
    """Chromium without a window."""
    from selenium import webdriver

    program, driver = chromium
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options, webdriver.ChromeService(driver))
    session.set_window_size(1280, 1000)
    yield session
    session.quit()
