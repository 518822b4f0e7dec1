"""A real Slurm of one node on the loopback address, with a configuration and state of its own."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol")
CONFIGURATION = """
ClusterName=toy
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,batch_sched_delay=1
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=toy Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why Slurm cannot be started here; empty if it can."""
    absent = [program for program in PROGRAMS if not shutil.which(program)]
    if absent:
        return f"Slurm is not installed (no {', '.join(absent)}); see `make test-slurm`"
    return "" if os.getuid() == 0 else "only root can start Slurm's daemons"


@contextmanager
def slurm(folder: Path, cpus: int = 2) -> Iterator[str]:
    """Run Slurm with its files in ``folder``, whose path must be short; yields the node's name."""
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key, configuration = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    ports = {"controller_port": free_port(), "node_port": free_port()}
    configuration.write_text(CONFIGURATION.format(host=host, folder=folder, cpus=cpus, **ports))
    munge = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")]
    commands = (
        ["munged", "--foreground", "--force", f"--key-file={key}", "--num-threads=1", *munge],
        ["slurmctld", "-D", "-c", "-f", str(configuration)],
        ["slurmd", "-D", "-f", str(configuration)],
    )
    with ExitStack() as daemons:
        for command in commands:
            daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            daemons.callback(end, daemon)
            if command[0] == "munged":
                wait_until(lambda: (folder / "munge.socket").exists())
        wait_until(lambda: "idle" in ask("sinfo", "--noheader", "--format=%T", configuration=configuration))
        yield host
        ask("scancel", f"--user={os.getuid()}", "--signal=KILL", "--full", configuration=configuration)


def ask(*command: str, configuration: Path | None = None) -> str:
    """What one of Slurm's programs prints."""
    environment = {**os.environ, **({"SLURM_CONF": str(configuration)} if configuration else {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def end(daemon: "subprocess.Popen[bytes]") -> None:
    daemon.terminate()
    try:
        daemon.wait(10)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.1)
