import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from fedprompt.core.errors import UserError
from fedprompt.datasets._download import Download, fetch, unpack

BODY = bytes(range(256)) * 4000
MD5 = hashlib.md5(BODY).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves BODY; the path says how."""

    asked: list[str | None] = []  # noqa: RUF012

    def do_GET(self) -> None:
        byte_range = self.headers.get("Range")
        self.asked.append(byte_range)
        begin = int(byte_range.removeprefix("bytes=").rstrip("-")) if byte_range and "plain" not in self.path else 0
        if self.path == "/none":
            return self.send_error(404)
        if begin >= len(BODY):
            return self.send_error(416)
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(BODY) - begin))
        self.end_headers()
        body = BODY[begin:]
        self.wfile.write(body[:300_000] if "cut" in self.path and not byte_range else body)
        return None

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Handler.asked.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}"
        httpd.shutdown()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_downloaded_once(server: str, tmp_path: Path) -> None:
    download = Download(f"{server}/whole", MD5)
    for _ in range(2):
        assert fetch(download, tmp_path / "new").read_bytes() == BODY
    assert len(Handler.asked) == 1


@pytest.mark.parametrize("path", ["cut", "cut-plain"])  # with a server that can resume, and one that cannot
def test_an_interrupted_download_resumes(server: str, tmp_path: Path, path: str) -> None:
    download = Download(f"{server}/{path}", MD5)
    with pytest.raises(UserError, match="run again to resume"):
        fetch(download, tmp_path)
    assert names(tmp_path) == [f"{path}.part"]
    assert fetch(download, tmp_path).read_bytes() == BODY
    assert Handler.asked == [None, "bytes=300000-"]
    assert names(tmp_path) == [path]


def test_a_download_killed_just_before_its_renaming(server: str, tmp_path: Path) -> None:
    (tmp_path / "whole.part").write_bytes(BODY)
    assert fetch(Download(f"{server}/whole", MD5), tmp_path).read_bytes() == BODY


def test_a_wrong_checksum_leaves_nothing(server: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"does not match its checksum .MD5 {MD5}, expected 00.* run again"):
        fetch(Download(f"{server}/whole", "00"), tmp_path)
    assert names(tmp_path) == []


def test_a_file_of_the_user_is_checked_but_not_deleted(server: str, tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(b"something else")
    with pytest.raises(UserError, match="remove it and run again"):
        fetch(Download(f"{server}/whole", MD5), tmp_path)
    assert names(tmp_path) == ["whole"]


def test_an_address_that_does_not_answer(server: str, tmp_path: Path) -> None:
    for url, reason in ((f"{server}/none", "Not Found"), ("http://127.0.0.1:9/x", "refused")):
        with pytest.raises(UserError, match=f"cannot fetch {url} .*{reason}.* put the file into") as caught:
            fetch(Download(url, MD5), tmp_path)
        assert "\n" not in str(caught.value)
    assert names(tmp_path) == []


def test_a_full_disk(server: str, tmp_path: Path, full_disk: Callable[[int], AbstractContextManager[None]]) -> None:
    download = Download(f"{server}/whole", MD5)
    with full_disk(100_000), pytest.raises(UserError, match=r"cannot write .*whole\.part: .*; make room"):
        fetch(download, tmp_path)
    assert names(tmp_path) == ["whole.part"]
    assert fetch(download, tmp_path).read_bytes() == BODY  # resumes once there is room


def tar_of(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_unpack_with_an_archive_inside(tmp_path: Path) -> None:
    inner = tar_of(tmp_path / "inner.tar.gz", {"classes/a.txt": b"a"})
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
        archive.write(inner, "outer/inner.tar.gz")
    unpack(Download("http://x/outer.zip", ""), tmp_path / "outer.zip")
    assert (tmp_path / "outer" / "classes" / "a.txt").read_bytes() == b"a"
    assert names(tmp_path) == ["inner.tar.gz", "outer", "outer.zip"]


def test_unpack_under_another_name(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "val.tar.gz", {"val/a.txt": b"a"})
    unpack(Download("http://x/val.tar.gz", "", rename=("val", "2021_valid")), archive)
    assert names(tmp_path) == ["2021_valid", "val.tar.gz"]


@pytest.mark.parametrize("keep", [0.5, 0.0])
def test_a_broken_archive_leaves_nothing(tmp_path: Path, keep: float) -> None:
    archive = tar_of(tmp_path / "a.tar.gz", {"a/x": BODY})
    archive.write_bytes(archive.read_bytes()[: int(archive.stat().st_size * keep)])
    with pytest.raises(UserError, match="unpack"):
        unpack(Download("http://x/a.tar.gz", ""), archive)
    assert names(tmp_path) == ["a.tar.gz"]


@pytest.mark.parametrize("name", ["../../evil", "../evil", "a/../../evil", "/tmp/fedprompt-evil"])
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_an_archive_cannot_write_outside(tmp_path: Path, kind: str, name: str) -> None:
    (tmp_path / "data").mkdir()
    archive = tmp_path / "data" / f"a.{kind}"
    if kind == "tar":
        tar_of(archive, {"a/x": b"x", name: b"x"})
    else:
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr("a/x", "x")
            packed.writestr(name, "x")
    if kind == "tar" and name.startswith("/"):
        unpack(Download("http://x/a", ""), archive)  # tar drops the slash: the file stays inside
        assert not Path(name).exists()
        return
    with pytest.raises(UserError, match=r"cannot be unpacked \(.*evil.*\); delete it") as caught:
        unpack(Download("http://x/a", ""), archive)
    assert "\n" not in str(caught.value)
    assert (names(tmp_path), names(tmp_path / "data"), Path(name).exists()) == (["data"], [f"a.{kind}"], False)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_an_archive_holds_plain_files_only(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as packed:
        info = tarfile.TarInfo("a/entry")
        info.type, info.linkname = kind, "x"
        packed.addfile(tarfile.TarInfo("a/x"))
        packed.addfile(info)
    with pytest.raises(UserError, match=r"cannot be unpacked \(.*a/entry"):
        unpack(Download("http://x/a.tar", ""), tmp_path / "a.tar")
    assert names(tmp_path) == ["a.tar"]


def test_an_encrypted_archive_is_one_line(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "x")
    raw = bytearray((tmp_path / "a.zip").read_bytes())
    for header, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        raw[raw.index(header) + flags] |= 1
    (tmp_path / "a.zip").write_bytes(raw)
    with pytest.raises(UserError, match=r"a\.zip cannot be unpacked .*encrypted"):
        unpack(Download("http://x/a.zip", "", unpack=True), tmp_path / "a.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
