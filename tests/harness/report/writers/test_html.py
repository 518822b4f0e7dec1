import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.report_suites import a_document

from fedprompt.harness.report.writers.html import render

VOID = {"meta", "img", "br"}


class Page(HTMLParser):
    """Fails where a tag is not closed in order; keeps what a test wants to see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []
        self.anchors: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        values = dict(attrs)
        self.links += [value for name in ("href", "src") if (value := values.get(name))]
        self.anchors += [value for name, value in attrs if name == "id" and value]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


@pytest.fixture
def text(tmp_path: Path) -> str:
    return render(a_document(tmp_path))


def test_it_is_well_formed_and_needs_nothing_else(text: str) -> None:
    page = Page(text)
    outside = [link for link in page.links if ":" in link and not link.startswith("data:image/png;base64,")]
    assert outside == []
    assert not re.search(r"https?:|url\(|@import|<script|<link", text)


def test_contents_lead_to_sections(text: str) -> None:
    page = Page(text)
    expected = [link[1:] for link in page.links if link.startswith("#")]
    assert len(expected) == len(set(expected)) == 9
    assert set(expected) <= set(page.anchors)
    assert len(page.anchors) == len(set(page.anchors))


def test_values_and_their_marks(text: str) -> None:
    assert re.search(r"<strong>6\d\.\d\d</strong>", text)
    assert '<span class="spread">±' in text
    assert '<span class="failed">failed</span>' in text
    assert "<sup>a</sup>" in text


def test_rows_are_complete(text: str) -> None:
    rows = Page(text).rows
    assert ["No prompt", "failed", "failed", "–"] in rows
    assert ["Method", *(f"V={v}" for v in range(1, 11))] in rows


def test_text_is_no_markup(text: str) -> None:
    assert "a_b &amp; 50% of &lt;c&gt; | #1" in text
    assert "<title>Every kind &amp; more</title>" in text


def test_what_is_for_checking_is_folded(text: str) -> None:
    assert "<details><summary><h2>Provenance</h2></summary>" in text


def test_figures_have_one_scale(text: str) -> None:
    assert '<img alt="A dot &amp; more" width="72" src="data:image/png;base64,' in text  # 100 pixels, at 200 an inch


def test_it_suits_dark_screens_phones_and_paper(text: str) -> None:
    for query in ("prefers-color-scheme: dark", "max-width: 40rem", "@media print"):
        assert query in text
    assert 'name="viewport"' in text


def test_it_links_its_files_figures_and_runs(text: str) -> None:
    links = Page(text).links
    assert {"report.md", "report.tex", "tables.csv", "cells.csv", "figures/dot.png", "figures/dot.pdf"} <= set(links)
    assert any(re.fullmatch(r"\.\./\.\./runs/[0-9a-f]{16}/", link) for link in links)
