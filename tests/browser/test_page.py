"""The report's page as a reader's browser shows it."""

from pathlib import Path
from typing import Any

import pytest

WIDER = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def page(browser: Any, results: Path) -> Any:
    browser.get((results / "report" / "small" / "index.html").as_uri())
    return browser


def test_tables_have_one_row_per_method(page: Any) -> None:
    table = page.find_elements("css selector", "table")[0]
    first = [row.text for row in table.find_elements("css selector", "tbody tr > :first-child")]
    assert first == ["No prompt", "FedVPT", "pFedBayesPT"]


def test_every_picture_is_there(page: Any) -> None:
    widths = [image.get_property("naturalWidth") for image in page.find_elements("css selector", "img")]
    assert len(widths) >= 4
    assert min(widths) > 300


def test_nothing_is_fetched_and_nothing_fails(page: Any) -> None:
    assert (
        page.execute_script(
            "return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length"
        )
        == 0
    )
    assert [entry["message"] for entry in page.get_log("browser")] == []


@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_itself_does_not_scroll_sideways(page: Any, width: int) -> None:
    page.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": True}
    )
    assert page.execute_script(WIDER) <= 0


def test_links_of_the_contents_lead_somewhere(page: Any) -> None:
    targets = [link.get_dom_attribute("href") for link in page.find_elements("css selector", "nav a")]
    assert targets
    for target in targets:
        assert target.startswith("#")
        assert page.find_elements("id", target.removeprefix("#"))
