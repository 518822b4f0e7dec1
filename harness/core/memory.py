"""The C library's memory: freed pages are kept for the next tensor instead of being given back and zeroed again."""

import ctypes
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_MMAP_THRESHOLD = 32 * 2**20  # the largest that glibc takes


@cache
def keep_freed_memory() -> bool:
    """Whether this process now keeps what it frees, up to 2 GB: each step of training allocates the same tensors anew.

    Only glibc has these two settings; elsewhere nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
