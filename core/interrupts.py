"""Tells a real Ctrl-C from a KeyboardInterrupt that a plugin raises, so that only the first ends a command."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the process received SIGINT."""


@contextmanager
def ctrl_c_apart() -> Iterator[None]:
    """Inside, Ctrl-C raises `Interrupted`; any other KeyboardInterrupt comes from the code that runs.

    Does nothing outside the main thread, where no signal arrives, and where somebody else handles the signal.
    """
    on_main_thread = threading.current_thread() is threading.main_thread()
    if not on_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise Interrupted


def one_line(error: BaseException) -> str:
    """The error's type and the first line of its message, also if the message cannot be made."""
    try:
        lines = str(error).splitlines()
    except Interrupted:
        raise
    except BaseException:  # a plugin's error may do anything
        lines = ["(its message cannot be shown)"]
    return ": ".join([type(error).__name__, *lines[:1]])
