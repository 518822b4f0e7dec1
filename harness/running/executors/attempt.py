"""One attempt to run a cell, in whatever process an executor chose for it."""

from contextlib import suppress

from fedprompt.core.errors import UserError
from fedprompt.core.interrupts import Interrupted, ctrl_c_apart, one_line
from fedprompt.core.text import visible
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.executors.interface import CellOutcome, OnRound
from fedprompt.harness.running.folder import LockedError, is_done, is_locked, note_failure, open_folder, run_folder
from fedprompt.harness.running.integrity import ChangedError, Guard, is_foreign
from fedprompt.harness.running.run import RoundProgress, run_cell, shared_backbone
from fedprompt.methods import load_plugin, registry


def attempt(cell: Cell, environment: RunEnvironment, on_round: OnRound, restart: bool) -> CellOutcome:
    """Run ``cell`` here. Whatever its method raises is its outcome, an exit too; only a real Ctrl-C goes on."""

    guard: Guard | None = None

    def report(progress: RoundProgress) -> None:
        if guard:  # before a round counts, and the run is called finished
            guard.check()
        try:
            on_round(progress)
        except KeyboardInterrupt as error:  # of an observer, not of the method
            raise Interrupted from error

    folder = run_folder(environment.out, cell)
    with ctrl_c_apart():
        try:
            if is_locked(folder):  # known before the data are loaded
                raise LockedError(cell)
            if cell.method not in registry():  # a worker knows plugins only by their files
                for plugin in environment.plugins:
                    load_plugin(plugin)
            if is_foreign(registry().get(cell.method)) and (restart or not is_done(folder)):
                guard = Guard(shared_backbone(cell.backbone, environment.weights, environment.device))
            run_cell(cell, environment, report, restart)
            return CellOutcome(cell, folder)
        except Interrupted:
            raise
        except LockedError as error:  # not a failure of the cell
            return CellOutcome(cell, folder, str(error), locked=True)
        except UserError as error:
            reason = str(error)
            if isinstance(error, ChangedError):
                with suppress(UserError, OSError), open_folder(folder, cell, restart=True):
                    pass  # its rounds must not be resumed
                shared_backbone.cache_clear()
        except BaseException as error:  # a faulty method must not stop the other cells; its error is kept
            reason = one_line(error)
    return failed(cell, environment, reason)


def failed(cell: Cell, environment: RunEnvironment, reason: str) -> CellOutcome:
    """The reason is also written into the run folder, if that can be written to."""
    folder, reason = run_folder(environment.out, cell), visible(reason)
    try:
        note_failure(folder, reason)
    except OSError as error:
        reason += f" (nor can this be noted in {folder}: {error.strerror})"
    return CellOutcome(cell, folder, reason)
