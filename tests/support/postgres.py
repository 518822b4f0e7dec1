"""A PostgreSQL server of a test's own, on a free port; the test is skipped where there are no binaries."""

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of an empty database. PostgreSQL does not run as root, so root runs it as the package's own user."""
    binaries = [*Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), Path(shutil.which("pg_ctl") or "/nowhere")]
    control = next((path.resolve() for path in binaries if path.exists()), None)
    user = "postgres" if os.geteuid() == 0 else ""
    if control is None or importlib.util.find_spec("psycopg") is None:
        pytest.skip("PostgreSQL or its driver is not installed (Debian's package postgresql, extra `postgres`)")
    if user and user not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip("PostgreSQL does not run as root, and there is no user `postgres`")
    folder, port = Path(tempfile.mkdtemp(prefix="postgres-")), free_port()
    if user:
        shutil.chown(folder, user)

    def run(*command: str | Path) -> None:
        switch = ["runuser", "-u", user, "--"] if user else []
        subprocess.run([*switch, *map(str, command)], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    data = folder / "data"
    try:
        run(control.with_name("initdb"), "-D", data, "-A", "trust", "-U", "tester", "-E", "UTF8", "--no-sync")
        options = f"-p {port} -k {folder} -h 127.0.0.1 -F"
        run(control, "-D", data, "-l", folder / "log", "-o", options, "-w", "start")
        try:
            yield f"postgresql+psycopg://tester@127.0.0.1:{port}/postgres"
        finally:
            run(control, "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)
