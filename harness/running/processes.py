"""How worker processes start: where the system can, as copies of one process that has imported what cells need."""

import multiprocessing
from multiprocessing.context import BaseContext

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
