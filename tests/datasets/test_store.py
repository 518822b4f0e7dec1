import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from fedprompt.core.errors import UserError
from fedprompt.datasets import _store
from fedprompt.datasets._store import ARRAYS, is_store, new_store, open_store, write_images, write_store
from fedprompt.datasets.testing import tiny_dataset

Change = Callable[[np.ndarray], np.ndarray]
FullDisk = Callable[[int], AbstractContextManager[None]]


def store(folder: Path, **sizes: int) -> None:
    data = tiny_dataset(**sizes)
    write_store(folder, "tiny", {key: getattr(data, key) for key in ARRAYS}, data.class_names, data.domain_names)


def test_a_written_store_is_mapped_back(tmp_path: Path) -> None:
    store(tmp_path / "tiny")
    data, read = tiny_dataset(), open_store(tmp_path / "tiny", verify=True)
    assert isinstance(read.images, np.memmap)
    assert all(np.array_equal(getattr(data, key), getattr(read, key)) for key in ARRAYS)
    assert read.class_names == data.class_names
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_chunks_of_any_size_give_one_array(tmp_path: Path) -> None:
    images = np.arange(11 * 12, dtype=np.uint8).reshape(11, 3, 2, 2)
    assert write_images(tmp_path, [images[:1], images[1:10], images[10:]]) == 11
    assert np.array_equal(np.load(tmp_path / "images.npy"), images)


@pytest.mark.parametrize(
    "room", [1000, 100_000]
)  # too little for the images; enough for the images but not for the labels
def test_a_full_disk_leaves_nothing(tmp_path: Path, room: int, full_disk: FullDisk) -> None:
    sizes = {"size": 30} if room == 1000 else {"classes": 30, "train": 100, "size": 1}
    with full_disk(room), pytest.raises(UserError, match="nothing was left behind"):
        store(tmp_path / "tiny", **sizes)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_the_old_store_and_still_complains(tmp_path: Path, full_disk: FullDisk) -> None:
    store(tmp_path / "tiny", train=3)
    before = open_store(tmp_path / "tiny").checksum
    with full_disk(1000), pytest.raises(UserError, match="cannot write"):
        store(tmp_path / "tiny", size=30)
    assert open_store(tmp_path / "tiny", verify=True).checksum == before


def test_an_interrupted_store_leaves_nothing(tmp_path: Path) -> None:
    def chunks() -> Iterator[np.ndarray]:
        yield np.zeros((2, 3, 4, 4), np.uint8)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), new_store(tmp_path / "tiny") as scratch:
        write_images(scratch, chunks())
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_process_are_removed_after_a_day(tmp_path: Path) -> None:
    for name, age in ((".tiny-old", 2 * 24 * 3600), (".tiny-new", 60)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    store(tmp_path / "tiny")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tiny-new", "tiny"]


def flip_last_bit(file: Path) -> None:
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)


@pytest.mark.parametrize("key", ARRAYS)
def test_a_flipped_bit_is_refused_and_the_file_named(tmp_path: Path, key: str) -> None:
    store(tmp_path / "tiny")
    file = tmp_path / "tiny" / f"{key}.npy"
    times = file.stat()
    flip_last_bit(file)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as if it had never been touched
    for _ in range(2):
        message = f"{file} do not match their checksum; delete the folder and prepare again"
        with pytest.raises(UserError, match=re.escape(message)):
            open_store(tmp_path / "tiny")


def test_names_in_another_order_are_refused(tmp_path: Path) -> None:
    store(tmp_path / "tiny")
    meta = json.loads((tmp_path / "tiny" / "meta.json").read_text())
    meta["class_names"].reverse()
    (tmp_path / "tiny" / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(UserError, match="do not match their checksum"):
        open_store(tmp_path / "tiny")


def test_an_unchanged_store_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path / "tiny")
    shutil.copytree(tmp_path / "tiny", tmp_path / "copy")
    checked = []
    check = _store.running_digests
    monkeypatch.setattr(_store, "running_digests", lambda *args: checked.append(1) or check(*args))
    open_store(tmp_path / "tiny")  # verified as it was written
    assert checked == []
    open_store(tmp_path / "copy")
    open_store(tmp_path / "copy")
    assert checked == [1]
    open_store(tmp_path / "copy", verify=True)
    assert checked == [1, 1]


@pytest.mark.parametrize("text", ["[]", "{}", "null", '{"version": 1', '{"class_names": 3}', "\udcff"])
def test_a_damaged_meta_file_is_refused(tmp_path: Path, text: str) -> None:
    store(tmp_path / "tiny")
    (tmp_path / "tiny" / "meta.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=r"cannot be read .* delete the folder and prepare again"):
        open_store(tmp_path / "tiny")
    assert not is_store(tmp_path / "tiny", "x")


def test_a_shortened_file_is_found_at_once(tmp_path: Path) -> None:
    store(tmp_path / "tiny")
    file = tmp_path / "tiny" / "images.npy"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match="delete the folder and prepare again"):
        open_store(tmp_path / "tiny")


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    store(tmp_path / "tiny")
    meta = json.loads((tmp_path / "tiny" / "meta.json").read_text())
    (tmp_path / "tiny" / "meta.json").write_text(json.dumps({**meta, "version": 0}))
    with pytest.raises(UserError, match="prepare again"):
        open_store(tmp_path / "tiny")


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write the prepared data"):
        store(tmp_path / "file" / "tiny")


@pytest.mark.parametrize("key", ARRAYS)
@pytest.mark.parametrize("content", [b"", b"\x93NUMPY\x01\x00", b"PK\3\4", b"\x80\4]."])
def test_an_array_that_is_none_is_refused(tmp_path: Path, key: str, content: bytes) -> None:
    store(tmp_path / "tiny")
    (tmp_path / "tiny" / f"{key}.npy").write_bytes(content)
    with pytest.raises(UserError, match=rf"cannot be read \(.*{key}\.npy .*; delete the folder and prepare again"):
        open_store(tmp_path / "tiny")


def test_a_fifo_in_place_of_an_array_is_refused(tmp_path: Path) -> None:
    store(tmp_path / "tiny")
    (tmp_path / "tiny" / "labels.npy").unlink()
    os.mkfifo(tmp_path / "tiny" / "labels.npy")
    with pytest.raises(UserError, match=r"labels\.npy cannot be read: .*not a plain file"):
        open_store(tmp_path / "tiny")


def rewritten(folder: Path, key: str, array: np.ndarray) -> None:
    """Another array with the checksum that belongs to it, as a stranger's store may have."""
    np.save(folder / f"{key}.npy", array)
    meta = json.loads((folder / "meta.json").read_text())
    arrays = {name: np.load(folder / f"{name}.npy") for name in ARRAYS}
    digests = _store.running_digests(arrays, tuple(meta["class_names"]), tuple(meta["domain_names"]))
    meta |= {"digests": digests, "checksum": digests["is_test"]}
    meta["bytes"][key] = (folder / f"{key}.npy").stat().st_size
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize(
    ("key", "change", "fault"),
    [
        ("labels", lambda a: a + 1000, "number more than the 10 names"),
        ("labels", lambda a: a - 1, "number more than the 10 names"),
        ("domains", lambda a: a + 6, "number more than the 6 names"),
        ("labels", lambda a: a[:-1], "differ in length"),
        ("labels", lambda a: a.astype(float), "labels.npy has the shape"),
        ("images", lambda a: a[0], "images.npy has the shape"),
    ],
)
def test_an_array_that_does_not_fit_is_refused(tmp_path: Path, key: str, change: Change, fault: str) -> None:
    store(tmp_path / "tiny")
    rewritten(tmp_path / "tiny", key, change(np.load(tmp_path / "tiny" / f"{key}.npy")))
    for _ in range(2):
        with pytest.raises(UserError, match=f"{fault}.*; delete the folder and prepare again"):
            open_store(tmp_path / "tiny")


@pytest.mark.parametrize("value", [{}, [], 3, None, "", [{}], [[]]])
@pytest.mark.parametrize("key", ["checksum", "digests", "bytes", "class_names", "domain_names", "name", "version"])
def test_an_odd_value_in_the_meta_file_gives_no_traceback(tmp_path: Path, key: str, value: object) -> None:
    store(tmp_path / "tiny")
    meta = json.loads((tmp_path / "tiny" / "meta.json").read_text())
    (tmp_path / "tiny" / "meta.json").write_text(json.dumps({**meta, key: value}))
    if key in ("digests", "name"):  # neither decides whether the bytes are right
        assert len(open_store(tmp_path / "tiny").labels) == 1800
    else:
        with pytest.raises(UserError, match="delete the folder and prepare again"):
            open_store(tmp_path / "tiny")


@pytest.mark.parametrize("text", ["{}", "[]", "null", "[" * 100_000])
def test_odd_stamps_mean_that_every_byte_is_checked(tmp_path: Path, text: str) -> None:
    store(tmp_path / "tiny")
    flip_last_bit(tmp_path / "tiny" / "labels.npy")
    (tmp_path / "tiny" / "verified.json").write_text(text)
    with pytest.raises(UserError, match="do not match their checksum"):
        open_store(tmp_path / "tiny")
