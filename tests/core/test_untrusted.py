"""Files from outside: each fault is one line, found soon and in little memory."""

import gzip
import io
import json
import os
import resource
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedprompt.core.errors import UserError
from fedprompt.core.untrusted import (
    read_arrays,
    read_bytes,
    read_csv,
    read_json,
    read_json_lines,
    read_table,
    read_text,
    read_toml,
)

READERS = (read_bytes, read_text, read_json, read_json_lines, read_table, read_toml, read_csv, read_arrays)
GIGABYTE = 2**30


def written(folder: Path, name: str, content: bytes | str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def refusal(read: Callable[..., Any], path: Path, **options: Any) -> str:
    """The message of the UserError, which names the file and has one line."""
    with pytest.raises(UserError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


def test_what_is_sound_is_read(tmp_path: Path) -> None:
    assert read_json(written(tmp_path, "a.json", '{"a": [1, null]}')) == {"a": [1, None]}
    assert read_table(written(tmp_path, "a.json.gz", gzip.compress(b'{"a": 1}'))) == {"a": 1}
    assert read_json_lines(written(tmp_path, "a.jsonl", "1\n\n[2]\n")) == [1, [2]]
    assert read_toml(written(tmp_path, "a.toml", "[a.b]\nc = 1\n")) == {"a": {"b": {"c": 1}}}
    assert read_csv(written(tmp_path, "a.csv", 'x,y\n1,"two\nlines"\n')) == [{"x": "1", "y": "two\nlines"}]
    np.savez_compressed(tmp_path / "a.npz", rows=np.arange(3))
    assert read_arrays(tmp_path / "a.npz")["rows"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("read", READERS)
def test_what_is_not_a_plain_file_is_refused_at_once(read: Callable[..., Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for place in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        assert "it is not a plain file" in refusal(read, place)
    assert "it does not exist" in refusal(read, tmp_path / "absent")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "symbolic links" in refusal(read, tmp_path / "loop")


@pytest.mark.parametrize("read", READERS)
def test_a_file_beyond_its_limit_is_refused(read: Callable[..., Any], tmp_path: Path) -> None:
    message = refusal(read, written(tmp_path, "large", "1" * 101), limit=100)
    assert "has more than 100 bytes" in message


@pytest.mark.parametrize("read", READERS)
def test_a_file_must_lie_within_the_folder_that_is_named(read: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    written(tmp_path, "secret", "1")
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "secret")
    for name in ("link", "../secret"):
        assert "leads out of" in refusal(read, tmp_path / "inside" / name, within=tmp_path / "inside")


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    written(tmp_path, "a.json", "1")
    (tmp_path / "b.json").symlink_to("a.json")
    assert read_json(tmp_path / "b.json", within=tmp_path) == 1


@pytest.mark.parametrize(
    ("read", "content", "fault"),
    [
        (read_text, b"caf\xe9", "not UTF-8 (byte 3)"),
        (read_json, "", "not JSON"),
        (read_json, '{"a": ', "not JSON"),
        (read_json, "9" * 5000, "not JSON"),
        (read_json, "[" * 100_000, "nested more than 50 levels deep"),
        (read_json, "[" * 60 + "]" * 60, "nested more than 50 levels deep"),
        (read_table, "[]", "is not a table"),
        (read_toml, "a = ", "not TOML"),
        (read_toml, "a = " + "[" * 50_000, "nested more than 50 levels deep"),
        (read_toml, "a." * 100_000 + "a = 1", "line 1 has more than 200 dots"),
        (read_csv, "", "not a header"),
        (read_csv, "a,a\n1,2\n", "not a header"),
        (read_csv, ",".join(map(str, range(1001))), "not a header"),
        (read_csv, "a,b\n1\n", "line 2 has 1 values for 2 columns"),
        (read_csv, "a\n" + "x" * 200_000, "not CSV"),
        (read_csv, 'a\n"open', "not CSV"),
        (read_arrays, b"", "not a whole .npz file"),
        (read_arrays, b"PK\3\4 and nothing else", "not a whole .npz file"),
    ],
)
def test_a_fault_is_named(read: Callable[..., Any], content: bytes | str, fault: str, tmp_path: Path) -> None:
    assert fault in refusal(read, written(tmp_path, "file", content))


def test_a_faulty_line_is_named(tmp_path: Path) -> None:
    assert ", line 2 cannot be read: it is not JSON" in refusal(read_json_lines, written(tmp_path, "a.jsonl", "1\n{\n"))


@pytest.mark.parametrize("cut", [0, 10, 30, -1])
def test_a_cut_gzip_file(cut: int, tmp_path: Path) -> None:
    path = written(tmp_path, "a.json.gz", gzip.compress(json.dumps(list(range(100))).encode())[:cut])
    assert "cannot be read" in refusal(read_json, path)


def test_pickled_objects_are_not_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", rows=np.array([{}], object))
    assert "allow_pickle" in refusal(read_arrays, tmp_path / "a.npz")


def bomb(folder: Path, kind: str) -> Path:
    zeros = bytes(2**26)
    if kind == "gzip":
        with gzip.open(folder / "bomb.json.gz", "wb", compresslevel=1) as file:
            for _ in range(40):
                file.write(zeros)
        return folder / "bomb.json.gz"
    if kind == "npz":
        with zipfile.ZipFile(folder / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            buffer = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                buffer, {"descr": "|u1", "fortran_order": False, "shape": (40 * 2**26,)}
            )
            with archive.open("rows.npy", "w", force_zip64=True) as file:
                file.write(buffer.getvalue())
                for _ in range(40):
                    file.write(zeros)
        return folder / "bomb.npz"
    content = {"dots.toml": "a." * 120_000 + "a=1", "lists.json": "[" + "[]," * 10_000_000 + "[]]"}
    return written(folder, kind, content[kind])


@pytest.mark.parametrize(
    ("kind", "reader"),
    [("gzip", "read_json"), ("npz", "read_arrays"), ("dots.toml", "read_toml"), ("lists.json", "read_json")],
)
def test_a_bomb_takes_little_memory(kind: str, reader: str, tmp_path: Path) -> None:
    """In a process of its own, which may have two gigabytes."""
    path = bomb(tmp_path, kind)
    code = f"""
from pathlib import Path
from fedprompt.core import errors, untrusted
try:
    untrusted.{reader}(Path({str(path)!r}))
except errors.UserError as error:
    print(error)
"""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (2 * GIGABYTE, 2 * GIGABYTE))

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, preexec_fn=limited, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (done.stdout.count("\n") == 1) == (kind != "lists.json")
