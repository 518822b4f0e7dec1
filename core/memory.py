"""Memory: freed pages stay with the process, and Python collects garbage less often."""

import ctypes
import gc
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # the largest that glibc takes
COLLECT_AFTER = 50_000  # new objects; 700 or 2,000 by default


def collect_rarely() -> None:
    """Collect garbage every 50,000 new objects: the million that torch, timm and MLflow leave make collections slow."""
    gc.set_threshold(COLLECT_AFTER)


@cache
def keep_freed_memory() -> bool:
    """Keep up to 2 GB of freed memory for the next allocation; returns whether that worked.

    Each training step allocates the same tensors again, and pages that were given back must be zeroed first. Only glibc
    has these settings; elsewhere nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
