"""`fedprompt ui`: MLflow in the browser, opened on the runs of the results folder."""

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedprompt.core.errors import UserError
from fedprompt.harness.cli._options import add_out
from fedprompt.harness.cli._parser import add_command

if TYPE_CHECKING:
    from fedprompt.harness.cli._parser import Commands

# Nothing here leaves this machine, and the server's background jobs are for GenAI: without them it starts sooner.
ENVIRONMENT = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def add(commands: "Commands") -> None:
    parser = add_command(commands, "ui", ui, "show recorded runs in the browser", ("ui", "ui --port 5001 --no-browser"))
    parser.add_argument("--port", type=int, default=5000, help="of 127.0.0.1 (default 5000)")
    parser.add_argument("--no-browser", action="store_true", help="print the links, open nothing")
    add_out(parser)


def ui(args: Namespace) -> int:
    """Serves until it is interrupted."""
    if not 0 < args.port < 65536:
        raise UserError(f"--port {args.port} is out of range; it must be 1 to 65535.")
    database = args.out / "mlflow.db"
    if not database.exists():
        raise UserError(
            f"no MLflow database {database}; run `fedprompt bench` first, or name another folder with --out."
        )
    _check_port(args.port)
    links = _links(f"http://127.0.0.1:{args.port}", f"sqlite:///{database.resolve()}")
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(args.port), "--workers", "1"]
    environment = {**ENVIRONMENT, **os.environ}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the server ends with this process, however it is asked
    server = subprocess.Popen([*command, "--backend-store-uri", f"sqlite:///{database.resolve()}"], env=environment)
    try:
        _wait(server, args.port)
        for link in links:
            print(link, flush=True)
        if not args.no_browser and links:
            import webbrowser

            webbrowser.open(links[0].split()[-1])
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        server.terminate()
        server.wait(30)


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "is taken by another program" if taken else f"cannot be used ({error.strerror})"
            raise UserError(
                f"port {port} {reason}; choose another: make ui PORT=N, or fedprompt ui --port N."
            ) from error


def _links(address: str, uri: str) -> list[str]:
    """One line per data set, and one for its trials if there are any; the data set with most runs first."""
    from fedprompt.harness.recording.store import connect, experiment_name
    from fedprompt.harness.recording.view import RESULTS, TUNING, view_link, view_tags

    client = connect(uri)
    lines: list[tuple[int, Sequence[str]]] = []
    for experiment in client.search_experiments(filter_string=f"name LIKE '{experiment_name('%')}'"):
        number = experiment.experiment_id
        for key, value in view_tags().items():  # also for databases of earlier versions
            if experiment.tags.get(key) != value:
                client.set_experiment_tag(number, key, value)
        runs = client.search_runs([number], "tags.phase = 'final'")
        shown = [f"{experiment.name}: {view_link(address, number, RESULTS)}"]
        if client.search_runs([number], "tags.phase = 'study'", max_results=1):
            shown.append(f"{experiment.name}, tuning: {view_link(address, number, TUNING)}")
        lines.append((-len(runs), shown))
    return [line for _, shown in sorted(lines) for line in shown]


def _wait(server: "subprocess.Popen[bytes]", port: int) -> None:
    """Until the server answers, however long a busy machine takes, or has ended."""
    while server.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise UserError(f"MLflow did not start on port {port}; what it printed stands above.")
