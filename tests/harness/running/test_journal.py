"""The journal of a run: what a checkpoint costs, and what is left of one that was cut short or damaged."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
import torch
from support.run_folders import a_cell

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.toy import toy_dataset
from fedprompt.harness.federation.rounds import FederationState, RoundLog
from fedprompt.harness.measuring.evaluation import Record
from fedprompt.harness.running import journal as journal_module
from fedprompt.harness.running import run as run_module
from fedprompt.harness.running.cell import Cell, make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.journal import CHECKPOINT, RECORDS, ROUNDS, Journal, round_rows
from fedprompt.harness.running.run import RoundProgress, run_cell

CELL = a_cell()
HEAD_BYTES = 4 * 16  # of one client


def open_journal(folder: Path, data: str = "some data") -> Journal:
    return Journal(folder, CELL, "0123456789abcdef", data)


def play(journal: Journal, cohort: tuple[int, ...]) -> FederationState:
    """One more round, in which every client of ``cohort`` gets a head that names the round and the client."""
    before = journal.state or FederationState(0, {})
    round_ = before.round + 1
    heads = {client: {"head": torch.full((16,), round_ + client / 8)} for client in cohort}
    state = FederationState(round_, {"prompt": torch.full((3,), float(round_))}, before.personal | heads)
    state.optimiser = {"prompt.mean": torch.full((1, 3), -float(round_))}
    records = [Record(round_, client, "photo", client, 100, True) for client in cohort]
    journal.append(state, RoundLog(round_, cohort, 1 / round_, 6, 6, 24, 24, {"kl": 0.1 * round_}), records)
    return state


def same(first: FederationState, second: FederationState | None) -> bool:
    assert second is not None
    return (
        (first.round, list(first.personal)) == (second.round, list(second.personal))
        and all(torch.equal(tensor, second.server[name]) for name, tensor in first.server.items())
        and all(torch.equal(tensor, second.optimiser[name]) for name, tensor in first.optimiser.items())
        and all(torch.equal(own["head"], second.personal[client]["head"]) for client, own in first.personal.items())
    )


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of every write."""
    sizes: list[int] = []

    def count(write: Callable[..., None]) -> Callable[..., None]:
        def counted(file: Path | BinaryIO, content: bytes) -> None:
            sizes.append(len(content))
            write(file, content)

        return counted

    for name in ("write_atomic", "_write"):
        monkeypatch.setattr(journal_module, name, count(getattr(journal_module, name)))
    return sizes


def test_what_is_read_back_has_every_bit(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for cohort in [(0, 1), (2, 3), (1, 4), (0, 3)]:
        state = play(journal, cohort)
    again = open_journal(tmp_path)
    assert same(state, again.state)
    assert again.log == journal.log
    assert again.log is not None
    assert again.log.diagnostics == {"kl": 0.4}
    assert again.records.read()["correct"].tolist() == [0, 1, 2, 3, 1, 4, 0, 3]


def test_a_round_of_five_of_ten_thousand_clients_writes_five(tmp_path: Path, written: list[int]) -> None:
    journal = open_journal(tmp_path)
    play(journal, tuple(range(10_000)))
    written.clear()
    for round_ in range(20):
        state = play(journal, tuple(range(5 * round_, 5 * round_ + 5)))
    assert sum(written) < 20 * (5 * HEAD_BYTES + 1500)  # names, sizes and digests take about a kilobyte
    assert same(state, open_journal(tmp_path).state)


def test_writing_grows_with_the_rounds_not_with_their_square(tmp_path: Path, written: list[int]) -> None:
    journal = open_journal(tmp_path)
    for round_ in range(100):
        play(journal, tuple(range(5 * round_, 5 * round_ + 5)))
    assert sum(written) < 100 * 4 * (5 * HEAD_BYTES + 1500)
    assert (tmp_path / CHECKPOINT).stat().st_size < 2 * 100 * (5 * HEAD_BYTES + 1500)


def test_records_are_appended(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    contents = []
    for cohort in [(0, 1), (2, 3), (0, 1)]:
        play(journal, cohort)
        contents.append((tmp_path / RECORDS).read_bytes())
    assert contents[2].startswith(contents[1])
    assert contents[1].startswith(contents[0])


def test_a_journal_cut_at_any_byte_resumes_at_a_whole_round(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    play(journal, tuple(range(40)))
    states, sizes = [], []
    for cohort in [(0, 1), (2, 3), (4, 5)]:
        states.append(play(journal, cohort))
        sizes.append((tmp_path / CHECKPOINT).stat().st_size)
    whole, records = (tmp_path / CHECKPOINT).read_bytes(), (tmp_path / RECORDS).read_bytes()
    assert sizes == sorted(sizes)  # three entries were appended to the first
    for length in [sizes[0], sizes[0] + 1, sizes[0] + 39, sizes[1] - 1, sizes[1], sizes[1] + 500, sizes[2] - 1]:
        (tmp_path / CHECKPOINT).write_bytes(whole[:length])
        (tmp_path / RECORDS).write_bytes(records + b"half a ro")
        again = open_journal(tmp_path)
        expected = states[0] if length < sizes[1] else states[1]
        assert same(expected, again.state)
        assert again.records.read()["round"].max() == expected.round
        for number in range(expected.round, 4):
            play(again, [(0, 1), (2, 3), (4, 5)][number - 1])
        assert ((tmp_path / CHECKPOINT).read_bytes(), (tmp_path / RECORDS).read_bytes()) == (whole, records)


@pytest.mark.parametrize(("place", "resumed"), [(100, None), (5000, None), (-1, 2)])
def test_a_flipped_bit_never_passes(tmp_path: Path, place: int, resumed: int | None) -> None:
    journal = open_journal(tmp_path)
    play(journal, tuple(range(64)))
    play(journal, (0, 1))
    middle = (tmp_path / CHECKPOINT).stat().st_size
    play(journal, (2, 3))
    content = bytearray((tmp_path / CHECKPOINT).read_bytes())
    content[middle - 1 if place == 5000 else place] ^= 1
    (tmp_path / CHECKPOINT).write_bytes(content)
    if resumed is None:
        with pytest.raises(UserError, match=r"does not match its digest.*--restart"):
            open_journal(tmp_path)
    else:  # the last entry counts as one that was being written
        state = open_journal(tmp_path).state
        assert state is not None
        assert state.round == resumed


@pytest.mark.parametrize("name", [RECORDS, ROUNDS])
def test_a_damaged_table_is_refused(tmp_path: Path, name: str) -> None:
    play(open_journal(tmp_path), (0, 1))
    content = bytearray((tmp_path / name).read_bytes())
    content[-3] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name} does not match its digest.*--restart"):
        open_journal(tmp_path)


def test_rows_without_a_checkpoint_are_cut_off(tmp_path: Path) -> None:
    (tmp_path / RECORDS).write_text("seed,round\n0,1\n")
    assert open_journal(tmp_path).state is None
    assert (tmp_path / RECORDS).read_bytes() == b""


def test_other_data_are_refused(tmp_path: Path) -> None:
    play(open_journal(tmp_path), (0, 1))
    with pytest.raises(UserError, match=r"other data \(checksum some data, now new data\)"):
        open_journal(tmp_path, "new data")


def test_diagnostics_are_columns_with_names_that_stay() -> None:
    log = RoundLog(1, (0, 2), 0.5, 6, 6, 24, 24, {"kl": 0.1, "a,b": 2.0})
    header, row = round_rows([log]).decode().splitlines()
    assert header.endswith(',diagnostics/kl,"diagnostics/a,b"')
    assert row == "1,0 2,0.5,6,6,24,24,0.1,2.0"
    columns = [*header.split(",")[:-2], "diagnostics/a,b"]
    assert round_rows([log], columns).decode() == row + "\n"
    with pytest.raises(UserError, match="same names in every round"):
        round_rows([RoundLog(2, (0,), 0.5, 6, 6, 24, 24)], columns)


def test_a_diagnostic_may_have_any_name(tmp_path: Path) -> None:
    journal, names = open_journal(tmp_path), {"KL(q||p)": 0.5, "two\nlines": 1.0, "": 2.0}
    for round_ in (1, 2):
        state = FederationState(round_, {}, {0: {"head": torch.ones(1)}})
        journal.append(state, RoundLog(round_, (0,), 0.5, 1, 1, 4, 4, names), ())
    assert journal.rounds.read()["diagnostics/two\nlines"].tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_two_thousand_clients_resume_with_equal_bytes(toy_cell: Cell, tmp_path: Path) -> None:
    """Each has its own head and a few images; five take part in each round."""
    data = toy_dataset()
    rows = np.concatenate([np.resize(np.flatnonzero(data.is_test == test), 8000) for test in (False, True)])
    arrays = {name: getattr(data, name)[rows] for name in ("images", "labels", "domains", "is_test")}
    protocol = {"rounds": 30, "epochs": 1, "participation": 0.0025, "last": 1, "eval_every": 30, "head": "local"}
    cell = make_cell("head-tune", "toy", "classes:s=2,clients=2000", toy_cell.backbone, 0, {}, protocol)

    def interrupt(progress: RoundProgress) -> None:
        if progress.round == 17:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "_dataset", lambda *_: dataclasses.replace(data, **arrays))
        undisturbed = run_cell(cell, RunEnvironment(tmp_path / "a"))
        with pytest.raises(KeyboardInterrupt):
            run_cell(cell, RunEnvironment(tmp_path / "b"), interrupt)
        resumed = run_cell(cell, RunEnvironment(tmp_path / "b"))
    for name in (RECORDS, ROUNDS):
        assert (resumed / name).read_bytes() == (undisturbed / name).read_bytes()
    assert len((resumed / RECORDS).read_text().splitlines()) == 1 + 2000
    head = 4 * 4 * (96 + 1)  # four classes, micro-vit's width and a bias
    assert (resumed / CHECKPOINT).stat().st_size < 2 * 30 * (5 * head + 2000)
