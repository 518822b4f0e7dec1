"""Thousands of damaged published folders: believed or refused in one line, and nothing else is touched."""

import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from support.damage import DAMAGES, Damage, damaged
from support.published_runs import publish_anew
from support.report_suites import a_suite

from fedprompt.core.errors import UserError
from fedprompt.harness.report.reference import restore, verify

COUNT, LONGEST = 2000, 10  # examples; seconds


def test_damaged_published_folders(tmp_path_factory: pytest.TempPathFactory, figures: list[str]) -> None:
    suite, _, place = publish_anew(tmp_path_factory.mktemp("results"), a_suite(), partitions=True)
    scratch, tally = tmp_path_factory.mktemp("scratch"), {"refused": 0, "harmless": 0}
    slowest = 0.0

    @settings(max_examples=COUNT)
    @given(damage=DAMAGES)
    def strike(damage: Damage) -> None:
        nonlocal slowest
        with damaged(place, scratch, damage) as (folder, out):
            began, verdict = time.perf_counter(), "refused"
            with suppress(UserError):
                verify(folder)
                restore(folder, suite.cells(), out)
                verdict = "harmless"
            tally[verdict] += 1
            slowest = max(slowest, time.perf_counter() - began)
        assert not list(scratch.iterdir())

    strike()
    assert slowest < LONGEST
    figures.append(f"damaged published folders: {tally}, the slowest took {slowest:.1f} s")
