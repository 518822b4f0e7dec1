import pytest

from fedprompt.core.text import bytes_text, scaled


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
