"""Nothing of a published run is believed that its records do not say, and publishing destroys nothing."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from support.damage import DAMAGES, Damage, damaged
from support.published_runs import Published, publish_again, publish_anew
from support.report_suites import a_suite

from fedprompt.core.errors import UserError
from fedprompt.datasets import Partition
from fedprompt.harness.report.reference import publish, restore, verify
from fedprompt.harness.running.folder import is_done, open_folder, run_folder

Line = dict[str, Any]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish_anew(tmp_path_factory.mktemp("results"), a_suite(), partitions=True)


@pytest.fixture
def stranger(published: Published, tmp_path: Path) -> Path:
    """A copy of the published folder, which anybody may have edited."""
    return shutil.copytree(published[2], tmp_path / "stranger")


def edit_lines(folder: Path, edit: Callable[[Line], object]) -> None:
    lines = [json.loads(line) for line in gzip.decompress((folder / "cells.jsonl.gz").read_bytes()).splitlines()]
    for line in lines:
        edit(line)
    (folder / "cells.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))


EDITS: dict[str, tuple[Callable[[Line], object], str]] = {
    "a better average": (lambda line: line["summary"].update(average=0.99), "average = 0.99, its records say 0.4"),
    "a path as hash": (lambda line: line["summary"].update(partition_hash="../../x"), "'../../x' is no hash"),
    "another checksum": (lambda line: line["summary"].update(data_checksum="\x1b[2J"), "is no hash"),
    "a number more": (lambda line: line["summary"].update(bonus=1), "bonus"),
    "a number less": (lambda line: line["summary"].pop("worst_local"), "worst_local"),
    "a cheaper method": (lambda line: line["summary"].update(floats_up=1.0), "floats_up = 1.0"),
    "an endless number": (lambda line: line["summary"].update(average=10**400), "average = "),
    "rounds left out": (lambda line: line.update(rounds="round,loss\n1,0.5\n"), "not those of a whole run"),
    "another seed": (lambda line: line["cell"].update(seed=7), "is not the hash of its cell"),
    "no cell": (lambda line: line.pop("cell"), "lacks one of"),
    "an empty cell": (lambda line: line.update(cell={}), "is not a cell"),
}


@pytest.mark.parametrize("name", EDITS)
def test_what_records_do_not_say_is_not_believed(
    name: str, published: Published, stranger: Path, tmp_path: Path
) -> None:
    edit, words = EDITS[name]
    edit_lines(stranger, edit)
    with pytest.raises(UserError) as refused:
        restore(stranger, published[0].cells(), tmp_path / "out")
    assert words in str(refused.value)
    assert not list(tmp_path.glob("out/runs/*"))


def test_numbers_of_the_table_are_those_of_the_records(stranger: Path) -> None:
    verify(stranger)
    cells = (stranger / "cells.csv").read_text()
    assert ",0.45," in cells
    (stranger / "cells.csv").write_text(cells.replace(",0.45,", ",0.99,"))
    with pytest.raises(UserError, match=r"= 0\.99, its records say 0\.45"):
        verify(stranger)


def test_altered_records_are_noticed(stranger: Path) -> None:
    records = gzip.decompress((stranger / "records.csv.gz").read_bytes())
    assert b",300,1000," in records
    (stranger / "records.csv.gz").write_bytes(gzip.compress(records.replace(b",300,1000,", b",999,1000,")))
    with pytest.raises(UserError, match="its records say"):
        verify(stranger)


@pytest.mark.parametrize("name", ["cells.jsonl.gz", "records.csv.gz", "partitions/{}", "partitions"])
def test_links_are_refused(name: str, published: Published, stranger: Path, tmp_path: Path) -> None:
    [partition] = (stranger / "partitions").iterdir()
    path, elsewhere = stranger / name.format(partition.name), tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    with pytest.raises(UserError, match=r"is a link|leads out of"):
        restore(stranger, published[0].cells(), tmp_path / "out")
    assert not list(tmp_path.glob("out/runs/*"))


def test_another_partition_of_the_right_name_is_refused(published: Published, stranger: Path, tmp_path: Path) -> None:
    [file] = (stranger / "partitions").iterdir()
    rows = (np.arange(2),)
    Partition(rows, rows, rows).save(file)
    with pytest.raises(UserError, match="is not the partition of hash"):
        restore(stranger, published[0].cells(), tmp_path / "out")


def test_what_has_begun_here_stays_if_a_published_cell_is_refused(
    published: Published, stranger: Path, tmp_path: Path
) -> None:
    cell, out = published[0].cells()[0], tmp_path / "out"
    with open_folder(run_folder(out, cell), cell):
        (run_folder(out, cell) / "checkpoint.journal").write_bytes(b"hours of work")
    edit_lines(stranger, EDITS["a better average"][0])
    with pytest.raises(UserError):
        restore(stranger, published[0].cells(), out)
    assert (run_folder(out, cell) / "checkpoint.journal").read_bytes() == b"hours of work"


def test_a_full_disk_clears_nothing(published: Published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, out = published[0].cells()[0], tmp_path / "out"
    with open_folder(run_folder(out, cell), cell):
        (run_folder(out, cell) / "checkpoint.journal").write_bytes(b"hours of work")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedprompt.harness.report.reference.write_atomic", full)
    with pytest.raises(OSError, match="No space"):
        restore(published[2], published[0].cells(), out)
    assert (run_folder(out, cell) / "checkpoint.journal").exists()
    assert not is_done(run_folder(out, cell))


# -- publishing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["figures", "partitions", "README.md", "notes.txt"])
def test_a_folder_that_was_not_published_is_left_alone(name: str, published: Published, tmp_path: Path) -> None:
    suite, out, place = published
    mine = tmp_path / "mine"
    file = mine / name if "." in name else mine / name / "a.png"
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(UserError, match="name a new"):
        publish_again(suite, out, place, mine)
    assert [path.name for path in mine.iterdir()] == [name]
    assert file.read_text() == "mine"


def test_a_file_among_published_ones_is_not_deleted(published: Published, stranger: Path) -> None:
    suite, out, place = published
    (stranger / "partitions" / "thesis.tex").write_text("mine")
    with pytest.raises(UserError, match=r"holds partitions/thesis\.tex, which was not published"):
        publish_again(suite, out, place, stranger)
    assert (stranger / "partitions" / "thesis.tex").read_text() == "mine"


def test_what_is_published_is_replaced_as_a_whole_or_not_at_all(published: Published, stranger: Path) -> None:
    suite, out, _ = published
    before = {path: path.read_bytes() for path in stranger.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="suite 'tiny'"):  # it has no file, which is found out half-way
        publish(suite, out, stranger)
    assert {path: path.read_bytes() for path in stranger.rglob("*") if path.is_file()} == before
    assert [path.name for path in stranger.parent.iterdir()] == [stranger.name]


def test_an_altered_run_is_not_published(published: Published, tmp_path: Path) -> None:
    suite, _, place = published
    out = shutil.copytree(published[1], tmp_path / "out")
    records = run_folder(out, suite.cells()[0]) / "records.csv"
    records.write_text(records.read_text().replace(",300,1000,", ",999,1000,"))
    with pytest.raises(UserError, match=r"records\.csv is not what the finished run wrote"):
        publish_again(suite, out, place, tmp_path / "place")
    assert not (tmp_path / "place").exists()


# -- damage -----------------------------------------------------------------------------------------------------------


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(damage=DAMAGES)
def test_any_damage_is_one_line_or_harmless(damage: Damage, published: Published, tmp_path: Path) -> None:
    with damaged(published[2], tmp_path, damage) as (folder, out):
        with suppress(UserError):  # whose message is one line, whatever it quotes
            verify(folder)
            restore(folder, published[0].cells(), out)
        outside = {path.name for path in tmp_path.iterdir()} - {folder.parent.name}
    assert not outside


@pytest.mark.parametrize("name", ["cells.jsonl.gz", "records.csv.gz", "cells.csv"])
def test_a_fifo_is_refused_without_waiting(name: str, stranger: Path) -> None:
    (stranger / name).unlink()
    os.mkfifo(stranger / name)
    with pytest.raises(UserError, match="not a plain file"):
        verify(stranger)


@pytest.mark.parametrize("name", ["cells.jsonl.gz", "records.csv.gz"])
def test_a_bomb_is_refused(name: str, stranger: Path) -> None:
    (stranger / name).write_bytes(gzip.compress(bytes(2**20)) * 640)
    with pytest.raises(UserError, match="unpacks to more than"):
        verify(stranger)


def test_a_header_of_a_million_columns_is_refused(stranger: Path) -> None:
    (stranger / "cells.csv").write_text("," * 1_000_000)
    with pytest.raises(UserError, match="it has 1,000,001 columns"):
        verify(stranger)


def test_a_file_is_no_published_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be read"):
        verify(tmp_path / "file")
