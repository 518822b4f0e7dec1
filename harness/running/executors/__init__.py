"""Executors: where the cells of a command run. The choice never changes a result.

An executor implements the interface in `interface.py` and is registered below. That is all: the command line takes its
choices, help and options from the registry, and `execute` counts deaths and tries cells again for all of them.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedprompt.core.errors import UserError, unknown

if TYPE_CHECKING:
    from fedprompt.harness.running.environment import RunEnvironment
    from fedprompt.harness.running.executors.interface import Executor

    Factory = Callable[[RunEnvironment, int], Executor]  # the number says how many workers this machine may have


@dataclass(frozen=True)
class ExecutorEntry:
    """What the registry knows of an executor; its module is imported when it is used."""

    name: str
    factory: "str | Factory"  # `module:function`, or the function or class itself
    help: str
    remote: bool = False  # cells run on other machines, whose devices this one does not see
    options: str = ""  # help for its own option `--NAME KEY=VALUE`; empty if it has none

    def create(self, environment: "RunEnvironment", workers: int) -> "Executor":
        if isinstance(self.factory, str):
            module, _, attribute = self.factory.partition(":")
            factory: Factory = getattr(importlib.import_module(module), attribute)
            return factory(environment, workers)
        return self.factory(environment, workers)


_ENTRIES: dict[str, ExecutorEntry] = {}


def register_executor(entry: ExecutorEntry) -> None:
    if entry.name in _ENTRIES:
        raise UserError(f"executor {entry.name!r} is already registered; choose another name.")
    _ENTRIES[entry.name] = entry


def executors() -> Mapping[str, ExecutorEntry]:
    """Every registered executor, by name."""
    return _ENTRIES


def get_executor(name: str) -> ExecutorEntry:
    if name not in _ENTRIES:
        raise unknown("executor", name, _ENTRIES)
    return _ENTRIES[name]


register_executor(ExecutorEntry("local", f"{__name__}._local:open_local", "processes on this machine"))
register_executor(ExecutorEntry("ray", f"{__name__}._ray:RayExecutor", "a Ray cluster", remote=True))
register_executor(
    ExecutorEntry(
        "slurm",
        f"{__name__}._slurm:SlurmExecutor",
        "a Slurm cluster with a shared disk",
        remote=True,
        options="a setting of the jobs, such as partition=gpu, time=600 (minutes), gres=gpu:1; may be repeated",
    )
)
