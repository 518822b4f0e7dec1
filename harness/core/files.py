"""Files: where the cache is, and writing a file whole."""

import os
import tempfile
from pathlib import Path


def cache_dir() -> Path:
    """Where prepared data live: $FEDPROMPT_CACHE, else the user's cache folder."""
    chosen = os.environ.get("FEDPROMPT_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "fedprompt"


def write_atomic(path: Path, content: bytes) -> None:
    """The file is there whole or not at all, also when the process is killed in between."""
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(scratch).replace(path)
    finally:
        Path(scratch).unlink(missing_ok=True)
