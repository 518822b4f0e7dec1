"""Memory: pages stay with the process, and Python's collector looks for garbage less often."""

import ctypes
import gc
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # the largest that glibc takes
COLLECT_AFTER = 50_000  # new objects; 700 or 2,000 by default


def collect_rarely() -> None:
    """For commands: torch, timm and MLflow make a million objects that stay, and each collection walks through many."""
    gc.set_threshold(COLLECT_AFTER)


@cache
def keep_freed_memory() -> bool:
    """Whether this process now keeps what it frees, up to 2 GB: each step of training allocates the same tensors anew.

    Freed pages are then not given back and zeroed again. Only glibc has these two settings; elsewhere nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
