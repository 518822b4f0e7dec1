import pytest

from fedprompt.core.progress import track


def test_it_yields_the_items_and_draws_nothing_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track([3, 1, 2], "counting")) == [3, 1, 2]
    assert list(track(iter("ab"), "letters", total=2)) == ["a", "b"]
    assert capsys.readouterr() == ("", "")
