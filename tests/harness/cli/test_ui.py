import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.run_folders import a_cell, done_folder, new_store

from fedprompt.core.errors import UserError
from fedprompt.harness.cli import main
from fedprompt.harness.cli import ui as module
from fedprompt.harness.cli.ui import _links, _wait
from fedprompt.harness.recording.tracker import Tracker


def test_a_port_that_is_taken_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new_store(tmp_path)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["ui", "--port", str(port), "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"fedprompt: port {port} is taken by another program; "
        "choose another: make ui PORT=N, or fedprompt ui --port N.\n"
    )


def test_without_runs_there_is_nothing_to_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--out", str(tmp_path)]) == 2
    assert "run `fedprompt bench` first" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_links_lead_to_each_data_set(tmp_path: Path) -> None:
    uri = new_store(tmp_path)
    Tracker(uri, tmp_path).finish(done_folder(tmp_path, a_cell()))
    [line] = _links("http://127.0.0.1:5000", uri)
    assert line.startswith("fedprompt/glyph-domains: http://127.0.0.1:5000/#/experiments/")


def test_a_server_that_ends_is_not_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as server, pytest.raises(UserError, match="did not start"):
        _wait(server, 1)


def test_the_server_ends_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_store(tmp_path)
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    monkeypatch.setattr(module.subprocess, "Popen", lambda *_, **__: server)
    monkeypatch.setattr(module, "_wait", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["ui", "--port", "5059", "--no-browser", "--out", str(tmp_path)]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert server.poll() == -signal.SIGTERM
