"""Cells as jobs of a Slurm cluster, through submitit.

All nodes must see the results folder under one path. `<out>/slurm` gets a folder per command: the jobs' logs, what
submitit keeps of them, and one file per cell with the rounds that its job has reported.
"""

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fedprompt.core.errors import UserError, unknown
from fedprompt.core.interrupts import one_line
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment, choose_device
from fedprompt.harness.running.executors._local import attempt_apart
from fedprompt.harness.running.executors.attempt import failed
from fedprompt.harness.running.executors.interface import CellOutcome, Executor, LostCell, OnRound, Task
from fedprompt.harness.running.run import RoundProgress

if TYPE_CHECKING:
    from submitit import Job
    from submitit import SlurmExecutor as Submitter
    from submitit.core.utils import DelayedSubmission

POLL = 2.0  # seconds between two looks at the queue and the results folder
PATIENCE = 600.0  # seconds for which `squeue` may fail
ARRAY = 1000  # jobs of one array; Slurm's own limit (MaxArraySize) is one more unless the cluster changed it
DAY = 24 * 60  # minutes that a job may take, unless `time` says otherwise

TEXTS = (
    *("account", "comment", "constraint", "dependency", "exclude", "exclusive", "gres", "mail_type", "mail_user"),
    *("mem", "mem_per_cpu", "mem_per_gpu", "nodelist", "partition", "qos"),
)
NUMBERS = ("array_parallelism", "cpus_per_gpu", "cpus_per_task", "gpus_per_node", "gpus_per_task", "time")
COMMANDS = ("setup", "teardown")  # lines of shell around the job's program
GPU_REQUESTS = {"gres", "gpus_per_node", "gpus_per_task"}


class SlurmExecutor(Executor):
    """Arrays of jobs, one job per cell.

    Slurm itself starts a job again when its node fails or it is preempted, and submitit when its time is up; the job
    then resumes. A job that has left the queue without a result was cancelled or killed: its cell is lost.
    """

    def __init__(self, environment: RunEnvironment, _workers: int) -> None:
        """The number of workers is not used; `--slurm array_parallelism=N` limits how many jobs run at a time."""
        if environment.device not in ("auto", "cpu", "cuda"):
            raise UserError(
                f"device {environment.device!r} names a device of one machine; on a cluster use cpu, cuda or auto."
            )
        parameters = job_parameters(environment)
        self._environment = environment.resolved()
        self._name = f"fedprompt-{uuid4().hex[:8]}"  # of all jobs of this command
        self._folder = self._environment.out / "slurm" / f"{time.strftime('%Y%m%d-%H%M%S')}-{self._name[-8:]}"
        self._submitter = _submitter(self._folder, {**parameters, "job_name": self._name})
        self._jobs: dict[str, tuple[Job[CellOutcome | LostCell], Cell]] = {}  # by Slurm's number
        self._gone = set[str]()  # jobs that were not in the queue when it was last looked at
        self._read: dict[str, int] = {}  # bytes of each cell's rounds that were reported
        self._answered = time.monotonic()
        self._keep_logs = False

    def submit(self, tasks: Sequence[Task]) -> None:
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        for start in range(0, len(tasks), ARRAY):
            part = tasks[start : start + ARRAY]
            try:
                with self._submitter.batch():
                    jobs = [self._submitter.submit(_CellJob(t, self._environment, self._rounds(t.cell))) for t in part]
            except (FailedJobError, FailedSubmissionError, OSError) as error:
                reason = str(error).strip().splitlines()[-1]
                raise UserError(f"Slurm did not accept the jobs ({reason}); see `sinfo` and --slurm.") from error
            self._jobs |= {job.job_id: (job, task.cell) for job, task in zip(jobs, part, strict=True)}

    def wait(self, on_round: OnRound) -> Iterator[CellOutcome | LostCell]:
        time.sleep(POLL)
        queued = self._queued()  # before the files are listed: what left the queue has written its result
        present = {path.name for path in self._folder.iterdir()}
        ended = {number for number, (job, _) in self._jobs.items() if job.paths.result_pickle.name in present}
        for _, cell in self._jobs.values():
            if self._rounds(cell).name in present:
                self._report(cell, on_round)
        gone = set() if queued is None else self._jobs.keys() - queued - ended
        lost = gone & self._gone  # two looks in a row: a shared disk may show a file late
        self._gone = gone
        for number in ended | lost:
            job, cell = self._jobs.pop(number)
            outcome = _result(job, cell) if number in ended else LostCell(cell, f"job {number} ended without a result")
            if isinstance(outcome, LostCell) and outcome.retry:
                self._keep_logs = True
                outcome = replace(outcome, reason=f"{outcome.reason}; logs in {self._folder}")
            yield outcome

    def close(self) -> None:
        """Jobs that wait leave the queue; those that run are killed at once, not after Slurm's time of grace."""
        mine = ["scancel", "--quiet", f"--user={os.getuid()}", f"--name={self._name}"]
        for which in (["--state=PENDING"], ["--state=RUNNING", "--signal=KILL", "--full"], []):
            # In a session of its own: a second Ctrl-C must not stop it.
            subprocess.run([*mine, *which], capture_output=True, check=False, start_new_session=True)
        if not self._jobs and not self._keep_logs:
            shutil.rmtree(self._folder, ignore_errors=True)
            with suppress(OSError):  # other commands have folders there
                self._folder.parent.rmdir()

    def _rounds(self, cell: Cell) -> Path:
        return self._folder / f"{cell.hash}.rounds"

    def _report(self, cell: Cell, on_round: OnRound) -> None:
        """The rounds that the cell's job has written since the last look."""
        with self._rounds(cell).open("rb") as file:
            file.seek(self._read.get(cell.hash, 0))
            lines = file.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read[cell.hash] = self._read.get(cell.hash, 0) + len(whole)
        for line in whole.splitlines():
            on_round(RoundProgress(**json.loads(line)))

    def _queued(self) -> set[str] | None:
        """The jobs that Slurm holds or runs; None if it does not answer. Not by `sacct`, which needs a database."""
        command = ["squeue", "--noheader", "--array", "--format=%i", f"--user={os.getuid()}", f"--name={self._name}"]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        except (OSError, subprocess.SubprocessError) as error:
            if time.monotonic() - self._answered > PATIENCE:
                raise UserError(
                    f"Slurm has not answered for {PATIENCE / 60:.0f} minutes ({one_line(error)}); when it is back, the "
                    "same command goes on."
                ) from error
            return None
        self._answered = time.monotonic()
        return set(answer.stdout.split())


def job_parameters(environment: RunEnvironment) -> dict[str, Any]:
    """Parameters of submitit: our defaults, then what `--slurm KEY=VALUE` says."""
    chosen: dict[str, Any] = {}
    for key, text in environment.executor_options:
        if key in NUMBERS:
            if not text.isdecimal() or not int(text):
                unit = " minutes" if key == "time" else ""
                raise UserError(f"--slurm {key}={text} must be a whole number of 1 or more{unit}.")
            chosen[key] = int(text)
        elif key in COMMANDS:
            chosen[key] = [*chosen.get(key, []), text]
        elif key == "srun_args":
            chosen[key] = shlex.split(text)
        elif key in TEXTS:
            chosen[key] = True if text == "true" else text
        else:
            raise unknown("--slurm setting", key, (*NUMBERS, *COMMANDS, *TEXTS, "srun_args"))
    defaults: dict[str, Any] = {"time": DAY, "cpus_per_task": environment.threads}
    if environment.device == "cuda" and not GPU_REQUESTS & chosen.keys():
        defaults["gpus_per_node"] = 1
    return defaults | chosen


def _submitter(folder: Path, parameters: Mapping[str, Any]) -> "Submitter":
    try:
        import submitit
    except ImportError as error:
        raise UserError("executor 'slurm' needs the extra; in the checkout: pip install -e '.[slurm]'.") from error
    missing = [program for program in ("sbatch", "srun", "squeue", "scancel") if not shutil.which(program)]
    if missing:
        raise UserError(f"no {', '.join(missing)} on the path; run the command on a node of a Slurm cluster.")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}; choose another folder with --out DIR.") from error
    submitter = submitit.SlurmExecutor(folder)
    submitter.update_parameters(**parameters)
    return submitter


@dataclass(frozen=True)
class _CellJob:
    """What a job runs. The cell has a process of its own, because this one answers Slurm's signals."""

    task: Task
    environment: RunEnvironment
    rounds: Path

    def __call__(self) -> CellOutcome | LostCell:
        cell, restart = self.task
        try:
            environment = replace(self.environment, device=choose_device(self.environment.device))
        except UserError as error:
            return failed(cell, self.environment, str(error))
        restart = restart and not self.rounds.exists()  # else Slurm has started the job again
        return attempt_apart(Task(cell, restart), environment, self._report)

    def checkpoint(self) -> "DelayedSubmission":
        """What submitit puts back into the queue when the job's time is up: the same again, which resumes."""
        from submitit.core.utils import DelayedSubmission

        return DelayedSubmission(self)

    def _report(self, progress: RoundProgress) -> None:
        with self.rounds.open("a") as file:
            file.write(json.dumps(asdict(progress)) + "\n")


def _result(job: "Job[CellOutcome | LostCell]", cell: Cell) -> CellOutcome | LostCell:
    """What the job returned, or why it could not start."""
    error = job.exception()
    if error is not None:
        trace = [line for line in str(error).splitlines() if line.strip() and not line.startswith(("---", "You can"))]
        reason = next((line.strip() for line in reversed(trace) if not line.lstrip().startswith(("- ", "or at"))), "")
        return LostCell(cell, f"job {job.job_id}: {reason}")
    return job.result()
