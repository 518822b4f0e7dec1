from pathlib import Path

import pytest

from fedprompt.core.text import bytes_text, scaled, visible


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (999.6, "1.0 kB"), (3840, "3.8 kB"), (1.5e6, "1.5 MB"), (2e9, "2.0 GB")],
)
def test_bytes(count: float, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0, "B", "0 B"), (999, "B", "999 B"), (1234, "B", "1.23 kB"), (5.6e18, "B", "5.6 EB"), (5e21, "B", "5e+03 EB")],
)
def test_three_digits_and_a_prefix(value: float, unit: str, text: str) -> None:
    assert scaled(value, unit) == text


def test_counts_have_no_unit() -> None:
    assert [scaled(999.4), scaled(1_500_000)] == ["999", "1.5 M"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, naïve 漢字", "plain text, naïve 漢字"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("bell\x07 and \x9b2J", "bell\\x07 and \\x9b2J"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("left\u202eright\u2066", "left\\u202eright\\u2066"),
        ("caf\udce9", "caf\\udce9"),
        ("می\u200cخواهم", "می\u200cخواهم"),
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_line_breaks_can_be_kept() -> None:
    assert visible("a\n\x1b[0m", keep="\n") == "a\n\\x1b[0m"


def test_anything_can_be_shown() -> None:
    assert visible(Path("a\x1bb")) == "a\\x1bb"
