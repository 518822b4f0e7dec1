import os
import stat
from pathlib import Path

import numpy as np
import pytest

from fedprompt.core import files
from fedprompt.core.errors import UserError
from fedprompt.core.files import atomic_file, cache_dir, write_atomic


def test_write_atomic_leaves_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_an_array_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "array.npy"
    with atomic_file(path) as file:
        np.save(file, np.arange(3))
        assert not path.exists()
    assert np.load(path).tolist() == [0, 1, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["array.npy"]


def test_modes_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_without_a_home_directory_one_line_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("FEDPROMPT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(files.Path, "home", no_home)
    with pytest.raises(UserError, match=r"no home directory .* set FEDPROMPT_CACHE to a folder"):
        cache_dir()
