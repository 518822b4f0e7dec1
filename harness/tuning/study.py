"""A search on its way, and its record in Optuna's database: for Optuna's dashboard, and for TPE.

Run folders decide who runs a cell and hold its result, so nothing here says which process is alive. Every change of the
database is made under one lock in the results folder, so that recording a point again has no effect.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import optuna
from filelock import BaseFileLock, FileLock
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from fedprompt.core.errors import UserError
from fedprompt.harness.recording.store import first_line, public
from fedprompt.harness.tuning.propose import Proposer, pattern_proposer, untried
from fedprompt.harness.tuning.search import Point, Result, Search, point_key

FAILURE = "failure"  # attribute of a trial that failed or diverged: the reason
WORST = 0.0  # the value of a point that diverged, so that TPE learns to stay away from it
REPEAT = "another trial has this point"


def tuning_lock(out: Path) -> BaseFileLock:
    """Held by the process that changes Optuna's database or the tuned file."""
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
    """The points that were proposed in this call and how they ended."""

    def __init__(self, search: Search, storage: optuna.storages.RDBStorage, out: Path) -> None:
        self.search, self._storage, self._lock = search, storage, tuning_lock(out)
        self._optuna = optuna.create_study(
            study_name=search.name, storage=storage, direction="maximize", load_if_exists=True
        )
        self._propose: Proposer = pattern_proposer(search) if search.sampler == "pattern" else self._propose_by_tpe
        self._results: dict[str, Result | None] = {}  # by point, in the order of proposal; None: not ended yet

    @property
    def results(self) -> list[Result]:
        """Of the points that have ended; the default comes first."""
        return [result for result in self._results.values() if result is not None]

    @property
    def proposed(self) -> int:
        return len(self._results)

    def propose(self, count: int) -> list[Point]:
        """The next points; none if the search is over."""
        points = self._propose(self.results, count)
        self._results |= {point_key(point): None for point in points}
        return points

    def end(self, result: Result) -> None:
        """Record the result, unless the database has it: one complete trial per point, one failed one per reason."""
        self._results[point_key(result.point)] = result
        reason = result.reason[:500]
        with self._lock:
            trials = self._trials().get(point_key(result.point), [])
            if any(t.state == TrialState.COMPLETE or (reason and t.user_attrs.get(FAILURE) == reason) for t in trials):
                return
            if not any(trial.state == TrialState.RUNNING for trial in trials):
                self._begin(result.point)
                trials = self._trials()[point_key(result.point)]
            number = next(trial.number for trial in trials if trial.state == TrialState.RUNNING)
            if result.state == "failed":
                self._fail(number, reason)
            elif result.value is None:
                self._explain(number, reason)
                self._optuna.tell(number, WORST)
            else:
                self._optuna.tell(number, result.value)

    def conclude(self, final: Result) -> None:
        """Keep what a finalist reached in the finals; Optuna's record is of the search alone."""
        known = self._results[point_key(final.point)]
        assert known is not None
        self._results[point_key(final.point)] = replace(
            known, finals=final.by_seed or (WORST,) * len(self.search.finals)
        )

    def _propose_by_tpe(self, results: Sequence[Result], count: int) -> list[Point]:
        """First the points that the database has, of an earlier call or of another process; then new ones."""
        search = self.search
        with self._lock:
            if not self._trials():
                self._begin(search.default)
            points: list[Point] = [search.tied(trials[0].params) for trials in self._trials().values()]
            repeats = sum(t.user_attrs.get(FAILURE) == REPEAT for t in self._optuna.get_trials(deepcopy=False))
            while len(points) + repeats < search.trials and len(untried(points, results)) < count:
                # A sampler with one seed would repeat its first draws in every call that resumes the study.
                seed = (int(search.digest, 16) + len(points) + repeats) % 2**32
                startup = max(1, search.trials // 3)
                self._optuna.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=startup)
                trial = self._optuna.ask(_space(search, search.default))
                point = search.tied(trial.params)
                if point in points:  # it counts, because a small space may have no other points
                    self._fail(trial.number, REPEAT)
                    repeats += 1
                else:
                    points.append(point)
        return [{name: point[name] for name in search.grid} for point in untried(points, results)]

    def _trials(self) -> dict[str, list[FrozenTrial]]:
        """By point, in the order of their first trials."""
        groups: dict[str, list[FrozenTrial]] = {}
        for trial in self._optuna.get_trials(deepcopy=False):
            if trial.params.keys() == self.search.grid.keys():  # a process was killed while it drew the others
                groups.setdefault(point_key(self.search.tied(trial.params)), []).append(trial)
        return groups

    def _begin(self, point: Point) -> None:
        """Add a running trial, in one step."""
        params, space = self.search.effective(point), _space(self.search, point)
        self._optuna.add_trial(optuna.create_trial(state=TrialState.RUNNING, params=params, distributions=space))

    def _fail(self, number: int, reason: str) -> None:
        self._explain(number, reason)
        self._optuna.tell(number, state=TrialState.FAIL)

    def _explain(self, number: int, reason: str) -> None:
        study_id = self._storage.get_study_id_from_name(self.search.name)
        trial_id = self._storage.get_trial_id_from_study_id_trial_number(study_id, number)
        self._storage.set_trial_user_attr(trial_id, FAILURE, reason)


def _space(search: Search, point: Point) -> dict[str, BaseDistribution]:
    """Positive numbers on a logarithmic scale from the least to the greatest value; anything else as listed.

    A rate without a list reaches from a tenth of the default to ten times as much. ``point`` may lie outside.
    """
    space: dict[str, BaseDistribution] = {}
    default, values_here = search.effective(search.default), search.effective(point)
    for name, values in search.grid.items():
        listed = values if values or name not in search.rates else (default[name] / 10, default[name] * 10)
        allowed = tuple(dict.fromkeys((*listed, default[name], values_here[name])))
        if all(isinstance(value, float) and value > 0 for value in allowed):
            space[name] = FloatDistribution(min(allowed), max(allowed), log=True)
        else:
            space[name] = CategoricalDistribution(allowed)
    return space
