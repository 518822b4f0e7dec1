"""Files: where the cache is, and how a file is written whole or not at all."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from fedprompt.core.errors import UserError


def cache_dir() -> Path:
    """The folder of prepared data, resized images and features: $FEDPROMPT_CACHE, else `fedprompt` in the user's cache.

    The folder need not exist yet.
    """
    if configured := os.environ.get("FEDPROMPT_CACHE"):
        return Path(configured)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedprompt"
    except RuntimeError:
        raise UserError("there is no home directory for prepared data; set FEDPROMPT_CACHE to a folder") from None


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file that replaces ``path`` when the block ends; if the block fails, ``path`` stays as it was.

    For content that is too large to be in memory at once; otherwise use :func:`write_atomic`. A process that is killed
    inside the block leaves a scratch file named `.NAME-...` behind::

        with atomic_file(folder / "images.npy") as file:
            for chunk in chunks:
                file.write(chunk)
    """
    scratch = path.with_name(f".{path.name}-{uuid.uuid4().hex}")  # opened plainly, so that its mode follows the umask
    try:
        with scratch.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``path`` whole or not at all, even if the process is killed in between."""
    with atomic_file(path) as file:
        file.write(content)
