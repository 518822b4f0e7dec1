"""Freed memory stays with the process."""

import platform
import subprocess
import sys

import pytest

# What the C library holds of the system's memory, before, during and after the life of a tensor of 16 MB.
HELD = """
import ctypes, sys, torch
from fedprompt.harness.core.memory import keep_freed_memory
FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
def held():
    info = mallinfo()
    return info.arena + info.hblkhd
if sys.argv[1] == "keep":
    assert keep_freed_memory()
torch.ones(4 * 2**20)
before = held()
tensor = torch.ones(4 * 2**20)
during = held()
del tensor
print(during - before, held() - during)
"""


def changes(how: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", HELD, how], check=True, capture_output=True, text=True)
    return [int(text) for text in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_a_tensor_that_is_made_again_takes_no_new_pages() -> None:
    """Asked of the C library, not of the system, which may take pages away at any moment."""
    assert changes("keep") == [0, 0]
    assert changes("return") != [0, 0]  # what it does by itself
