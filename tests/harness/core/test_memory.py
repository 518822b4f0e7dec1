"""Freed memory stays with the process."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from fedprompt.harness.core.memory import keep_freed_memory
def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(4 * 2**20)  # 16 MB, 4,096 pages
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
assert keep_freed_memory()
print(min(page_faults() for _ in range(20)))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_a_tensor_that_is_made_again_takes_no_new_pages() -> None:
    """In a process of its own, and the best of many: the system may take pages away at any moment."""
    done = subprocess.run([sys.executable, "-c", FAULTS], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 1000
