from time import monotonic

import pytest
from rich.progress import ProgressColumn, Task, TaskID

from fedprompt.core.progress import progress, track


def test_it_yields_the_items_and_draws_nothing_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(track([3, 1, 2], "counting")) == [3, 1, 2]
    assert list(track(iter("ab"), "letters", total=2)) == ["a", "b"]
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["[/red]", "[bold]x", "\x1b[2Jx"])
def test_a_name_is_shown_as_it_is(name: str) -> None:
    column = progress().columns[0]
    assert isinstance(column, ProgressColumn)
    task = Task(TaskID(0), name, total=1, completed=0, _get_time=monotonic)
    assert str(column.render(task)) == name.replace("\x1b", "\\x1b")
