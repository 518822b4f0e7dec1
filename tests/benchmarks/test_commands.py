"""Whole commands, timed."""

import re
from pathlib import Path

import pytest
from commands import COMPLETE, IMPORTS, Command, compare_commands, timed

from fedprompt.core.errors import UserError


class Stopwatch:
    """For commands that take eight seconds, except that imports take two."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def __call__(self, arguments: tuple[str, ...]) -> tuple[float, str]:
        self.calls.append(arguments)
        return (2.0 if arguments == IMPORTS else 8.0), "Cells: 9 of 10 finished"


def test_a_command_is_told_over_the_imports_or_in_seconds(tmp_path: Path) -> None:
    start, plan = Command(("--help",), 5.0, over_imports=True), Command(("plan", "paper"), 7.0)
    one, two = compare_commands(tmp_path, (start, plan), Stopwatch())
    assert (one.work, one.reached, one.holds) == (
        "`fedprompt --help`, CPU time over that of importing torch and timm",
        4.0,
        True,
    )
    assert (two.work, two.reached, two.holds) == ("`fedprompt plan paper`, CPU time in seconds", 8.0, False)


def test_a_report_counts_only_if_no_run_is_missing(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").touch()
    stopwatch = Stopwatch()
    assert list(compare_commands(tmp_path, (), stopwatch)) == []
    assert stopwatch.calls[-1][-4:] == ("report", "embedded", "--tracking-uri", f"sqlite:///{tmp_path / 'mlflow.db'}")
    assert COMPLETE.search("Cells: 10 of 10 finished")
    assert not re.search(COMPLETE, "Cells: 9 of 10 finished")


def test_work_of_a_new_process_is_counted() -> None:
    idle, _ = timed(("-c", "pass"))
    busy, said = timed(("-c", "print(sum(range(20_000_000)))"))
    assert said.strip() == "199999990000000"
    assert busy > idle > 0


def test_a_command_that_fails_is_named_with_its_reason() -> None:
    with pytest.raises(UserError, match=r"^-c raise KeyError\('x'\) cannot be timed, because it fails: KeyError: 'x'$"):
        timed(("-c", "raise KeyError('x')"))
