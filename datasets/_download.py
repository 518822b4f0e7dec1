"""Fetching files: resumable, verified, unpacked whole or not at all."""

import hashlib
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

from fedprompt.harness.core.errors import UserError
from fedprompt.harness.core.progress import progress

CHUNK = 1 << 20
TIMEOUT = 60


@dataclass(frozen=True)
class Download:
    """A file of a data set at its maintainers' address."""

    url: str
    md5: str
    unpack: bool = False
    rename: tuple[str, str] | None = None  # a top folder of the archive and the name it gets here

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[1]


def fetch(download: Download, folder: Path) -> Path:
    """Download into ``folder`` unless it is there already; an interrupted download goes on where it stopped."""
    target = folder / download.name
    part = folder / f"{download.name}.part"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists():
            _verify(target, download)
            return target
        _transfer(download.url, part)
        _verify(part, download)
        part.rename(target)
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        again = f"run again to go on ({part} keeps what came)" if part.exists() else "try again later"
        raise UserError(
            f"cannot fetch {download.url} ({reason}); {again}, or put the file into {folder} yourself"
        ) from error
    except OSError as error:
        raise UserError(
            f"cannot write {part}: {error.strerror or error}; make room or choose another --root, then run again"
        ) from error
    return target


def unpack(download: Download, archive: Path) -> None:
    """Extract beside the archive, with the archives inside it; folders appear when they are complete."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{archive.name}-", dir=archive.parent))
    try:
        _extract(archive, scratch)
        for inner in sorted([*scratch.glob("*/*.tar.gz"), *scratch.glob("*/*.zip")]):
            _extract(inner, inner.parent)
        for path in scratch.iterdir():
            old, new = download.rename or (path.name, path.name)
            place = archive.parent / (new if path.name == old else path.name)
            if place.exists():
                shutil.rmtree(place) if place.is_dir() else place.unlink()
            path.rename(place)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{archive} cannot be unpacked ({error}); delete it and run again") from error
    except OSError as error:
        raise UserError(f"cannot unpack {archive}: {error.strerror or error}; nothing was kept") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _transfer(url: str, part: Path) -> None:
    begin = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing beyond what we have: complete, or not this file; the checksum tells
            return
        raise
    with response, progress(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as bar:
        if begin and response.status != 206:  # the server cannot resume and sends all of it
            begin = 0
        length = response.headers.get("Content-Length")
        total = begin + int(length) if length else None
        task = bar.add_task(part.name.removesuffix(".part"), completed=begin, total=total)
        got = begin
        with part.open("ab" if begin else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                got += len(chunk)
                bar.update(task, completed=got)
        if total is not None and got < total:
            raise ConnectionError(f"the connection ended after {got:,} of {total:,} bytes")


def _verify(path: Path, download: Download) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != download.md5:
        if path.suffix == ".part":  # a file of the user's own is not ours to delete
            path.unlink()
        raise UserError(
            f"{path} does not match its checksum (MD5 {found}, expected {download.md5}); "
            f"{'it was removed, run again' if path.suffix == '.part' else 'remove it and run again'}"
        )


def _extract(archive: Path, folder: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            file.extractall(folder)
    else:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
