"""Downloads that resume, are verified, and are unpacked completely or not at all.

Archives hold plain files and folders only; a member that would leave their folder is refused.
"""

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

from fedprompt.core.errors import UserError
from fedprompt.core.progress import progress
from fedprompt.datasets._images import BROKEN_ARCHIVE

CHUNK = 1 << 20
TIMEOUT = 60


@dataclass(frozen=True)
class Download:
    """A file that the maintainers of a data set offer.

    ``md5`` is its checksum. ``unpack`` says that it is an archive, ``rename`` that a folder at the top of the archive
    gets another name here.
    """

    url: str
    md5: str
    unpack: bool = False
    rename: tuple[str, str] | None = None  # from, to

    @property
    def name(self) -> str:
        """The file's name, which is the last part of its address."""
        return self.url.rsplit("/", 1)[1]


def fetch(download: Download, folder: Path) -> Path:
    """Download into ``folder`` unless it is there already, and return its path.

    An interrupted download resumes where it stopped. The checksum is compared either way; a wrong file that we fetched
    is removed, one that the user put there is not.
    """
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
        retry = f"run again to resume ({part} holds what has arrived)" if part.exists() else "try again later"
        raise UserError(
            f"cannot fetch {download.url} ({reason}); {retry}, or put the file into {folder} yourself"
        ) from error
    except OSError as error:
        raise UserError(
            f"cannot write {part}: {error.strerror or error}; make room or choose another --root, then run again"
        ) from error
    return target


def unpack(download: Download, archive: Path) -> None:
    """Extract into the archive's folder, along with the archives inside it; a folder appears when it is complete."""
    scratch = Path(tempfile.mkdtemp(prefix=f".{archive.name}-", dir=archive.parent))
    try:
        _extract(archive, scratch)
        for inner in sorted([*scratch.glob("*/*.tar.gz"), *scratch.glob("*/*.zip")]):
            _extract(inner, inner.parent)
        for path in scratch.iterdir():
            old, new = download.rename or (path.name, path.name)
            target = archive.parent / (new if path.name == old else path.name)
            if target.exists():
                shutil.rmtree(target) if target.is_dir() else target.unlink()
            path.rename(target)
    except OSError as error:
        raise UserError(f"cannot unpack {archive}: {error.strerror or error}; nothing was left behind") from error
    except BROKEN_ARCHIVE as error:
        raise UserError(f"{archive} cannot be unpacked ({error}); delete it and run again") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _transfer(url: str, part: Path) -> None:
    begin = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if (
            error.code == 416
        ):  # nothing beyond what we have: the file is complete, or not the right one, as its checksum will show
            return
        raise
    with response, progress(DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as bar:
        if begin and response.status != 206:  # the server cannot resume and sends everything
            begin = 0
        length = response.headers.get("Content-Length")
        total = begin + int(length) if length else None
        task = bar.add_task(part.name.removesuffix(".part"), completed=begin, total=total)
        received = begin
        with part.open("ab" if begin else "wb") as file:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                received += len(chunk)
                bar.update(task, completed=received)
        if total is not None and received < total:
            raise ConnectionError(f"the connection ended after {received:,} of {total:,} bytes")


def _verify(path: Path, download: Download) -> None:
    with path.open("rb") as file:
        md5 = hashlib.file_digest(file, "md5").hexdigest()
    if md5 != download.md5:
        if path.suffix == ".part":  # a file that the user put there is not ours to delete
            path.unlink()
        raise UserError(
            f"{path} does not match its checksum (MD5 {md5}, expected {download.md5}); "
            f"{'it was removed, run again' if path.suffix == '.part' else 'remove it and run again'}"
        )


def _extract(archive: Path, folder: Path) -> None:
    """Unpack plain files and folders; a member that is anything else, or would lie outside ``folder``, is refused."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for name in packed.namelist():
                if not (folder / name).resolve().is_relative_to(folder.resolve()):
                    raise zipfile.BadZipFile(f"its member {name!r} leads out of the folder")
            packed.extractall(folder)
    else:
        with tarfile.open(archive) as packed_tar:
            packed_tar.extractall(folder, filter=_plain_member)


def _plain_member(member: tarfile.TarInfo, folder: str) -> tarfile.TarInfo | None:
    """No links: by a chain of them a member can leave the folder, past the checks of some versions of Python."""
    if not (member.isreg() or member.isdir()):
        raise tarfile.SpecialFileError(member)
    return tarfile.data_filter(member, folder)
