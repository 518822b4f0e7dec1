"""Freed memory stays with the process."""

import platform
import subprocess
import sys

import pytest

# Bytes that the C library takes from the system for eight tensors of 16 MB: the most of ten turns, after ten others.
HELD = """
import ctypes, torch
from fedprompt.core.memory import keep_freed_memory
FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
def held():
    info = mallinfo()
    return info.arena + info.hblkhd
assert keep_freed_memory()
def taken():
    before = held()
    tensors = [torch.ones(4 * 2**20) for _ in range(8)]
    return held() - before
print(max([taken() for _ in range(20)][10:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_tensors_that_are_made_again_take_no_new_pages() -> None:
    """Asked of the C library, not of the system, which may take pages away at any moment."""
    done = subprocess.run([sys.executable, "-c", HELD], check=True, capture_output=True, text=True)
    assert int(done.stdout) == 0
