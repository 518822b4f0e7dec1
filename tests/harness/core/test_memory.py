"""Freed memory stays with the process."""

import platform
import resource

import pytest
import torch

from fedprompt.harness.core.memory import keep_freed_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_a_tensor_that_is_made_again_takes_no_new_pages() -> None:
    assert keep_freed_memory()

    def page_faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(4 * 2**20)  # 16 MB, 4,096 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    page_faults()
    assert min(page_faults() for _ in range(3)) < 100
