"""One search as Optuna records it, for its dashboard and for TPE.

Run folders decide who runs a cell and hold its result, so nothing here says which process is alive. Every change of the
database is made under one lock in the results folder, so that recording a point again has no effect.
"""

from collections.abc import Sequence
from pathlib import Path

import optuna
from filelock import BaseFileLock, FileLock
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from fedprompt.harness.core.errors import UserError
from fedprompt.harness.tracking.store import first_line, public
from fedprompt.harness.tuning.propose import GridProposer, Proposer, untried
from fedprompt.harness.tuning.search import Point, Result, Search, point_key


def tuning_lock(out: Path) -> BaseFileLock:
    """Held by the process that changes Optuna's database or the tuned file."""
    out.mkdir(parents=True, exist_ok=True)
    return FileLock(out / ".tuning.lock")


def open_storage(url: str, out: Path) -> optuna.storages.RDBStorage:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Other processes write too: sqlite would give up after five seconds.
    options = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    try:
        with tuning_lock(out):  # two processes cannot both create the tables
            return optuna.storages.RDBStorage(url, options)
    except Exception as error:  # the driver is missing, the server away, the password wrong, the URL no URL
        reason = public(url, first_line(error))
        raise UserError(f"Optuna's database {public(url)} cannot be opened ({reason}); check --storage.") from error


class Study:
    """A search on its way: which points were proposed in this call, and how those that ended did."""

    def __init__(self, search: Search, storage: optuna.storages.RDBStorage, out: Path) -> None:
        self.search = search
        self._recorder = Recorder(search, storage, out)
        self._proposer: Proposer = GridProposer(search) if search.sampler == "grid" else TPEProposer(self._recorder)
        self._results: dict[str, Result | None] = {}  # by point, in the order of proposal

    @property
    def expected(self) -> int:
        """How many points there will be, as far as that is known."""
        return len(self._proposer.points) if isinstance(self._proposer, GridProposer) else self.search.trials

    @property
    def results(self) -> list[Result]:
        """Of the points that have ended; the default comes first."""
        return [result for result in self._results.values() if result is not None]

    @property
    def idle(self) -> bool:
        """Whether all proposed points have ended."""
        return None not in self._results.values()

    def propose(self, count: int) -> list[Point]:
        points = self._proposer(self.results, count)
        self._results |= {point_key(point): None for point in points}
        return points

    def end(self, result: Result) -> None:
        self._results[point_key(result.point)] = result
        self._recorder.record(result)


class Recorder:
    """The trials of a search in Optuna's database."""

    def __init__(self, search: Search, storage: optuna.storages.RDBStorage, out: Path) -> None:
        self.search, self.lock = search, tuning_lock(out)
        self._storage = storage
        self.study = optuna.create_study(
            study_name=search.name, storage=storage, direction="maximize", load_if_exists=True
        )

    def trials(self) -> dict[str, list[FrozenTrial]]:
        """By point, in the order of their first trials."""
        groups: dict[str, list[FrozenTrial]] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if set(trial.params) == set(self.search.grid):
                groups.setdefault(point_key(trial.params), []).append(trial)
        return groups

    def record(self, result: Result) -> None:
        """A point has one complete trial, and before it one failed trial for each reason that it failed for."""
        with self.lock:
            trials = self.trials().get(point_key(result.point), [])
            running = next((trial for trial in trials if trial.state == TrialState.RUNNING), None)
            if any(_says(trial, result) for trial in trials):
                return
            if running is None:
                self.study.add_trial(_finished_trial(self.search, result))
            elif result.value is None:
                self._give_up(running, TrialState.FAIL, result.reason)
            else:
                self.study.tell(running.number, result.value)

    def ask(self) -> Point | None:
        """A point by TPE, now a running trial; None if it has a trial already. Call this with the lock held."""
        number = len(self.study.get_trials(deepcopy=False))
        if number == 0:
            self.study.enqueue_trial(self.search.default)
        # A sampler with one seed would repeat its first draws in every call that resumes the study.
        seed, startup = (int(self.search.digest, 16) + number) % 2**32, max(1, self.search.trials // 3)
        self.study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)
        earlier = self.trials()
        trial = self.study.ask(_space(self.search, self.search.default))
        if point_key(trial.params) in earlier:
            self._give_up(trial, TrialState.PRUNED, "another trial has this point")
            return None
        return trial.params

    def _give_up(self, trial: FrozenTrial | optuna.Trial, state: TrialState, reason: str) -> None:
        study_id = self._storage.get_study_id_from_name(self.search.name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        self._storage.set_trial_user_attr(trial_id, "failure", reason[:500])
        self.study.tell(trial.number, state=state)


class TPEProposer:
    """The default, then what TPE draws between the least and the greatest values of the grid.

    Points of an earlier call, or of another process, are in the database and are proposed again before new ones.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def __call__(self, results: Sequence[Result], count: int) -> list[Point]:
        search = self.recorder.search
        with self.recorder.lock:
            points = [_point(search, trials[0]) for trials in self.recorder.trials().values()]
            repeats = sum(trial.state == TrialState.PRUNED for trial in self.recorder.study.get_trials(deepcopy=False))
            while len(points) + repeats < search.trials and len(untried(points, results)) < count:
                point = self.recorder.ask()
                if point is None:
                    repeats += 1  # they count, for a space of few points has no others
                else:
                    points.append(point)
        return untried(points, results)


def _point(search: Search, trial: FrozenTrial) -> Point:
    return {name: trial.params[name] for name in search.grid}


def _says(trial: FrozenTrial, result: Result) -> bool:
    if trial.state == TrialState.FAIL and result.value is None:
        return bool(trial.user_attrs.get("failure") == result.reason[:500])
    return trial.state == TrialState.COMPLETE


def _finished_trial(search: Search, result: Result) -> FrozenTrial:
    failed = result.value is None
    return optuna.create_trial(
        state=TrialState.FAIL if failed else TrialState.COMPLETE,
        value=result.value,
        params=dict(result.point),
        distributions=_space(search, result.point),
        user_attrs={"failure": result.reason[:500]} if failed else {},
    )


def _space(search: Search, point: Point) -> dict[str, BaseDistribution]:
    """Positive numbers on a logarithmic scale from the least to the greatest value; anything else as listed."""
    space: dict[str, BaseDistribution] = {}
    for name, values in search.grid.items():
        allowed = tuple(dict.fromkeys((*values, search.default[name])))
        if all(isinstance(value, float) and value > 0 for value in allowed):
            bounds = (*allowed, point[name])
            space[name] = FloatDistribution(min(bounds), max(bounds), log=True)
        else:
            space[name] = CategoricalDistribution(allowed)
    return space
