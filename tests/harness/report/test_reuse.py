"""When the last report is shown again instead of a new one."""

from pathlib import Path

import pytest
from support.report_suites import a_suite, report, run_all

from fedprompt.harness.report.reuse import still_holds


@pytest.fixture
def reported(tmp_path: Path, uri: str, no_figures: None) -> Path:
    run_all(a_suite(), uri, tmp_path, leave=1)
    report(a_suite(), uri, tmp_path)
    return tmp_path


def test_a_report_holds_until_something_is_recorded(reported: Path, uri: str) -> None:
    shown = still_holds(a_suite(), uri, reported)
    assert shown is not None
    assert "Feature shift" in shown
    assert "1 of 2 cells are finished" in shown
    run_all(a_suite(), uri, reported)
    assert still_holds(a_suite(), uri, reported) is None


def test_a_changed_suite_is_reported_anew(reported: Path, uri: str) -> None:
    assert still_holds(a_suite(title="Another title"), uri, reported) is None
    tuned = {("head-tune", "glyph-domains", "domains:m=1", "global"): {"lr": 0.3}}
    assert still_holds(a_suite(tuned=tuned), uri, reported) is None


def test_without_its_page_a_report_does_not_hold(reported: Path, uri: str) -> None:
    (reported / "report" / "tiny" / "index.html").unlink()
    assert still_holds(a_suite(), uri, reported) is None
