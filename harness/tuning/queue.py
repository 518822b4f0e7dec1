"""The queue of trials of one search, kept in Optuna's database.

Values are queued explicitly and told one by one. Optuna's own grid sampler takes a failed value for visited, and its
`optimize` owns the loop; here a value counts as tried only when it has finished. Several processes may work on one
database: of several trials of one grid point the first counts, the others are given up before they begin.
"""

import math
import os
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import DBAPIError

from fedprompt.harness.core.errors import UserError
from fedprompt.harness.tracking.store import first_line, public
from fedprompt.harness.tuning.search import Point, Search, point_key

HEARTBEAT, GRACE = 60, 120  # seconds: how often a trial says that it lives, and after which silence it is dead
RETRIES = 2  # of a failed value in one call
LIVE = (TrialState.RUNNING, TrialState.WAITING)


@dataclass(frozen=True)
class Result:
    """What is known of one point."""

    number: int | None  # of the trial
    point: Point
    value: float | None  # validation accuracy, if it has finished
    state: str  # complete, running, waiting, failed or missing
    reason: str = ""  # of a failure


@contextmanager
def _quiet() -> Iterator[None]:
    """Heartbeats are experimental and meant for `optimize`, which Optuna says at every call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def open_storage(
    url: str, heartbeat: int = HEARTBEAT, grace: int = GRACE, tries: int = 3
) -> "optuna.storages.RDBStorage":
    """Optuna's database. It is tried again, for another process may be making the tables of a new one."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Other processes write too: sqlite would give up after five seconds.
    options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    try:
        with _quiet():
            return optuna.storages.RDBStorage(url, options, heartbeat_interval=heartbeat, grace_period=grace)
    except Exception as error:  # the driver is missing, the server away, the password wrong, the URL no URL
        if tries > 1 and isinstance(error, DBAPIError):
            time.sleep(1)
            return open_storage(url, heartbeat, grace, tries - 1)
        reason = public(url, first_line(error))
        raise UserError(f"Optuna's database {public(url)} cannot be opened ({reason}); check --storage.") from error


class Queue:
    """The trials of one search: what is asked must be told, or released."""

    def __init__(self, search: Search, storage: "optuna.storages.RDBStorage") -> None:
        self.search, self.storage = search, storage
        self.study = optuna.create_study(
            study_name=search.name, storage=storage, direction="maximize", load_if_exists=True
        )
        self._study_id = storage.get_study_id_from_name(search.name)
        self._space = _space(search)
        self._tries: Counter[str] = Counter()  # of each point, in this call
        self._asked: dict[int, tuple[Trial, int]] = {}  # ours and running: the trial and its id, by number

    def ask(self) -> Trial | None:
        """The next trial, running and ours; None where there is nothing to begin (others may be running)."""
        trial = self._next()
        return self._next() if trial is None and self._bury() else trial

    def _next(self) -> Trial | None:
        while True:
            trials = self._trials()
            waiting = any(trial.state == TrialState.WAITING for trial in trials)
            again = None if waiting else self._missing(trials)
            if again is not None:
                self.study.add_trial(
                    optuna.create_trial(state=TrialState.WAITING, params=dict(again), distributions=self._space)
                )
            elif not waiting and self._room(trials) <= 0:
                return None
            trial = self._begin(len(trials))
            if self._counts(trial):
                self._tries[point_key(trial.params)] += 1
                return trial
            self.tell(trial, reason="another trial has this value")

    def tell(self, trial: Trial, value: float = math.nan, reason: str = "") -> None:
        """End a trial with its value, or with the reason why it has none."""
        self._asked.pop(trial.number, None)
        if not reason and not math.isfinite(value):
            reason = f"the validation accuracy is {value}"
        with suppress(optuna.exceptions.UpdateFinishedTrialError):  # taken for dead meanwhile; its cells are kept
            if reason:
                trial.set_user_attr("failure", reason[:500])
                self.study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
            else:
                self.study.tell(trial, value, skip_if_finished=True)

    def release(self) -> None:
        """Give up what is asked and not told, for the next call to run."""
        for trial, _ in list(self._asked.values()):
            self.tell(trial, reason="interrupted")

    def beat(self) -> None:
        """Say that our running trials live."""
        for _, trial_id in list(self._asked.values()):
            self.storage.record_heartbeat(trial_id)

    @property
    def busy(self) -> bool:
        """Whether trials are running, here or elsewhere."""
        return any(trial.state == TrialState.RUNNING for trial in self._trials())

    @property
    def complete(self) -> bool:
        """Whether every point has finished, or failed as often as one call may."""
        trials = self._trials()
        live = any(trial.state in LIVE for trial in trials)
        return not live and self._missing(trials) is None and self._room(trials) <= 0

    def results(self) -> list[Result]:
        """One for each point, in the order in which ties are broken."""
        groups = _by_point(self._trials())
        points = {point_key(point): point for point in self.search.points}
        points |= {key: trials[0].params for key, trials in groups.items() if key not in points and self._tpe}
        return [_result(point, groups.get(key, [])) for key, point in points.items()]

    @property
    def _tpe(self) -> bool:
        return self.search.sampler == "tpe"

    def _trials(self) -> list[FrozenTrial]:
        return list(self.study.get_trials(deepcopy=False))

    def _missing(self, trials: Sequence[FrozenTrial]) -> Point | None:
        """The first point that has neither finished nor is on its way, and may still be tried."""
        groups = _by_point(trials)
        points = [*self.search.points, *(group[0].params for group in groups.values() if self._tpe)]
        for point in points:
            group = groups.get(point_key(point), [])
            alive = any(trial.state in (*LIVE, TrialState.COMPLETE) for trial in group)
            if not alive and self._tries[point_key(point)] <= RETRIES:
                return point
        return None

    def _room(self, trials: Sequence[FrozenTrial]) -> int:
        """How many points TPE may still choose; those of a grid are all known."""
        if not self._tpe:
            return 0
        groups = _by_point(trials).values()
        good = [sum(trial.state in (*LIVE, TrialState.COMPLETE) for trial in group) for group in groups]
        return self.search.trials - sum(max(1, count) for count in good)

    def _begin(self, number: int) -> Trial:
        if self._tpe:
            # A sampler of one seed would repeat its first draws in every call that resumes the study.
            seed = (int(self.search.digest, 16) + number) % 2**32
            startup = max(1, self.search.trials // 3)
            self.study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)
        with _quiet():
            trial = self.study.ask(self._space if self._tpe else None)
        trial_id = self.storage.get_trial_id_from_study_id_trial_number(self._study_id, trial.number)
        self._asked[trial.number] = trial, trial_id
        trial.set_user_attr("process", [_place(), os.getpid()])
        self.storage.record_heartbeat(trial_id)
        return trial

    def _counts(self, trial: Trial) -> bool:
        """Whether this is the trial of its point to run: no other finished, none that was queued earlier is live."""
        if self._tpe:
            return True
        if not trial.params:  # another process took the one that was waiting, and Optuna made an empty one
            return False
        group = _by_point(self._trials())[point_key(trial.params)]
        return not any(
            other.state == TrialState.COMPLETE or (other.state in LIVE and other.number < trial.number)
            for other in group
        )

    def _bury(self) -> bool:
        """Fail the running trials of processes that are no more, so that their values are run again; True if any."""
        others = self._running_elsewhere()
        for trial in filter(_is_dead, others):
            self.study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
        with _quiet():
            optuna.storages.fail_stale_trials(self.study)  # those without heartbeat, on whatever host
        return len(self._running_elsewhere()) < len(others)

    def _running_elsewhere(self) -> list[FrozenTrial]:
        return [t for t in self._trials() if t.state == TrialState.RUNNING and t.number not in self._asked]


@contextmanager
def heartbeat(queues: Sequence[Queue], interval: float = HEARTBEAT) -> Iterator[None]:
    """Record heartbeats of whatever the queues have running: Optuna itself does so in `optimize` only."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(interval):
            for queue in queues:
                with suppress(Exception):  # the database is away for a while: the next beat may reach it
                    queue.beat()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _space(search: Search) -> dict[str, BaseDistribution]:
    """Positive numbers on a logarithmic scale from the least to the greatest value; anything else as listed."""
    space: dict[str, BaseDistribution] = {}
    for name, values in search.grid.items():
        allowed = tuple(dict.fromkeys((*values, search.default[name])))
        if all(isinstance(value, float) and value > 0 for value in allowed):
            space[name] = FloatDistribution(min(allowed), max(allowed), log=True)
        else:
            space[name] = CategoricalDistribution(allowed)
    return space


def _by_point(trials: Sequence[FrozenTrial]) -> dict[str, list[FrozenTrial]]:
    groups: dict[str, list[FrozenTrial]] = {}
    for trial in trials:
        if trial.params:
            groups.setdefault(point_key(trial.params), []).append(trial)
    return groups


def _result(point: Point, trials: Sequence[FrozenTrial]) -> Result:
    order = (TrialState.COMPLETE, TrialState.RUNNING, TrialState.WAITING)
    for state in order:
        for trial in trials:
            if trial.state == state:
                return Result(trial.number, point, trial.value, state.name.lower())
    if not trials:
        return Result(None, point, None, "missing")
    return Result(trials[-1].number, point, None, "failed", trials[-1].user_attrs.get("failure", "killed"))


@cache
def _place() -> str:
    """Where a process number means something: the host, and on Linux its container."""
    with suppress(OSError):
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def _is_dead(trial: FrozenTrial) -> bool:
    """Known at once on the same host; elsewhere silence tells."""
    if "process" not in trial.user_attrs:  # killed in the instant between begin and first heartbeat
        begun = trial.datetime_start
        return begun is not None and datetime.now() - begun > timedelta(seconds=GRACE)
    place, pid = trial.user_attrs["process"]
    if place != _place():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False
