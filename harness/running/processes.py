"""How worker processes start: where the system can, as copies of one process that has imported what cells need."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, TypeVar

from fedprompt.core.interrupts import one_line

T = TypeVar("T")

PRELOADED = ("fedprompt.harness.running.run", "fedprompt.backbones.pretraining")  # torch, timm and pandas with them


def worker_context() -> BaseContext:
    """A fork server: importing torch takes seconds of CPU time, and its first worker waits for that, but no other.

    Only imports happen in it, so no thread, open file or CUDA context is copied. Where there is none, each worker
    starts from nothing.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


class ApartError(RuntimeError):
    """A call in a process of its own raised, ended the process or took too long."""


def call_apart(function: Callable[..., T], *arguments: object, seconds: float) -> T:
    """What ``function`` returns in a process of its own, which is killed after ``seconds`` or when it has answered."""
    context = worker_context()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(  # type: ignore[attr-defined]
        target=_answer, args=(theirs, dict(os.environ), function, arguments), daemon=True
    )
    process.start()
    theirs.close()
    try:
        if not ours.poll(seconds):
            raise ApartError(f"no answer within {seconds:g} s")
        returned, answer = ours.recv()
    except EOFError as error:
        raise ApartError("its process ended") from error
    finally:
        process.kill()
        process.join()
        ours.close()
    if not returned:
        raise ApartError(answer)
    result: T = answer
    return result


def _answer(
    pipe: "Connection[Any, Any]",
    variables: Mapping[str, str],
    function: Callable[..., object],
    arguments: tuple[object, ...],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent alone
    os.environ.clear()
    os.environ.update(variables)
    try:
        answer = True, function(*arguments)
    except BaseException as error:
        answer = False, one_line(error)
    pipe.send(answer)
