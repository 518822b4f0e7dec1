"""Read files that come from outside: published results, a stranger's suite, a cache that somebody else filled.

Every function reads a plain file with a limit on its size, and turns whatever is wrong with it into one
:class:`UserError` that names the file and the fault. Nothing in a file is ever executed::

    cells = read_json(folder / "cells.json", within=folder)   # no link leads out of the folder
    rows = read_csv(folder / "records.csv.gz", within=folder)  # unpacked as it is read, up to the limit

A name that ends in ``.gz`` is unpacked; the limit holds for the unpacked bytes.
"""

import csv
import gzip
import io
import json
import os
import stat
import tomllib
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedprompt.core.errors import UserError

MB = 2**20
TEXT_LIMIT = 64 * MB  # the largest table that the suite publishes has 24
JSON_LIMIT = 32 * MB  # empty lists take thirty times as much memory as text
TOML_LIMIT = MB // 4
ARRAY_LIMIT = 2**30
DEPTH_LIMIT = 50  # lists and tables within each other
DOTS_LIMIT = 200  # in a line of TOML: a key of n parts takes n² steps and as much memory
ROW_LIMIT, COLUMN_LIMIT = 1_000_000, 1_000  # of a CSV file


def read_bytes(path: Path, *, limit: int = TEXT_LIMIT, within: Path | None = None) -> bytes:
    """The content of a plain file of at most ``limit`` bytes.

    Folders, FIFOs and devices are refused without waiting for them. ``within`` is a folder that the file must lie in
    once links are followed, so that neither a link nor a name such as ``../x`` leads elsewhere.
    """
    if within is not None:
        require_inside(path, within)
    try:
        with open_plain(path) as file:
            content = gzip.GzipFile(fileobj=file).read(limit + 1) if path.suffix == ".gz" else file.read(limit + 1)
    except FileNotFoundError:
        raise _fault(path, "it does not exist") from None
    except (OSError, ValueError) as error:
        raise _fault(path, getattr(error, "strerror", None) or str(error)) from error
    except (EOFError, zlib.error) as error:
        raise _fault(path, f"it is not a whole gzip file ({error})") from error
    if len(content) > limit:
        unpacked = "unpacks to" if path.suffix == ".gz" else "has"
        raise _fault(path, f"it {unpacked} more than {limit:,} bytes, the limit for such a file")
    return content


def open_plain(path: Path) -> io.BufferedReader:
    """``path`` opened for reading if it is a plain file; a FIFO would block, a device may never end.

    Raises OSError, as opening does, with a reason that can be shown.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is not a plain file")
    return os.fdopen(handle, "rb")


def require_inside(path: Path, folder: Path) -> None:
    """Refuse a path that leaves ``folder``, by a link or by ``..``; it need not exist."""
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links, a null byte
        raise _fault(path, str(error)) from error
    if not inside:
        raise _fault(path, f"it leads out of {folder}")


def read_text(path: Path, *, limit: int = TEXT_LIMIT, within: Path | None = None) -> str:
    """The file as UTF-8; see :func:`read_bytes`."""
    return _decoded(read_bytes(path, limit=limit, within=within), path)


def read_json(path: Path, *, limit: int = JSON_LIMIT, within: Path | None = None) -> Any:
    """What the file holds: lists and tables nested at most ``DEPTH_LIMIT`` deep."""
    return parse_json(read_text(path, limit=limit, within=within), path)


def read_json_lines(path: Path, *, limit: int = JSON_LIMIT, within: Path | None = None) -> list[Any]:
    """One value per line; a fault names the line. Empty lines are skipped."""
    lines = read_text(path, limit=limit, within=within).split("\n")
    return [parse_json(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def read_table(path: Path, *, limit: int = JSON_LIMIT, within: Path | None = None) -> dict[str, Any]:
    """A JSON file whose outermost value is a table (``{...}``)."""
    table = read_json(path, limit=limit, within=within)
    if not isinstance(table, dict):
        raise _fault(path, "it is not a table")
    return table


def parse_json(text: str, where: Path | str) -> Any:
    """The value of a JSON text; ``where`` names its place in errors."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise _fault(where, f"it is nested more than {DEPTH_LIMIT} levels deep") from None
    except ValueError as error:
        raise _fault(where, f"it is not JSON ({error})") from error
    _check_depth(value, where)
    return value


def read_toml(path: Path, *, limit: int = TOML_LIMIT, within: Path | None = None) -> dict[str, Any]:
    """A TOML file. Long dotted keys are refused before they are parsed: one of 250 kB would take gigabytes."""
    text = read_text(path, limit=limit, within=within)
    for number, line in enumerate(text.split("\n"), 1):
        if line.count(".") > DOTS_LIMIT:
            raise _fault(path, f"line {number} has more than {DOTS_LIMIT} dots; split it")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise _fault(path, f"it is nested more than {DEPTH_LIMIT} levels deep") from None
    except ValueError as error:
        raise _fault(path, f"it is not TOML ({error})") from error
    _check_depth(table, path, DEPTH_LIMIT + DOTS_LIMIT)
    return table


def read_csv(path: Path, *, limit: int = TEXT_LIMIT, within: Path | None = None) -> list[dict[str, str]]:
    """One dict per row, keyed by the header, which must be there; every row must be as long as it."""
    rows = csv.reader(io.StringIO(read_text(path, limit=limit, within=within), newline=""), strict=True)
    table: list[dict[str, str]] = []
    try:
        header = next(rows, [])
        if not 0 < len(header) <= COLUMN_LIMIT or len(set(header)) != len(header):
            raise _fault(path, f"its first line is not a header of at most {COLUMN_LIMIT:,} distinct names")
        for row in rows:
            if len(row) != len(header):
                raise _fault(path, f"line {rows.line_num} has {len(row)} values for {len(header)} columns")
            if len(table) == ROW_LIMIT:
                raise _fault(path, f"it has more than {ROW_LIMIT:,} rows")
            table.append(dict(zip(header, row, strict=True)))
    except csv.Error as error:
        raise _fault(path, f"line {rows.line_num} is not CSV ({error})") from error
    return table


def read_arrays(path: Path, *, limit: int = ARRAY_LIMIT, within: Path | None = None) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file by name, none of them of objects (which would be unpickled)."""
    content = io.BytesIO(read_bytes(path, limit=limit, within=within))
    try:
        with zipfile.ZipFile(content) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > limit:
            raise _fault(path, f"it unpacks to more than {limit:,} bytes, the limit for such a file")
        with np.load(content, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name]) for name in arrays.files}
    except UserError:
        raise
    except Exception as error:  # damaged headers and members raise a dozen kinds
        raise _fault(path, f"it is not a whole .npz file ({error})") from error


def map_array(path: Path, *, within: Path | None = None) -> np.memmap:
    """The array of an ``.npy`` file, read from the disk as it is used; arrays of objects are refused."""
    if within is not None:
        require_inside(path, within)
    try:
        open_plain(path).close()
        return np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # a damaged header raises a dozen kinds
        raise _fault(path, f"it is not a whole .npy file ({getattr(error, 'strerror', None) or error})") from error


def _decoded(content: bytes, path: Path) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _fault(path, f"it is not UTF-8 (byte {error.start})") from None


def _check_depth(value: Any, where: Path | str, limit: int = DEPTH_LIMIT) -> None:
    """Later code walks recursively through what was read."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise _fault(where, f"it is nested more than {limit} levels deep")


def _fault(where: Path | str, what: str) -> UserError:
    return UserError(f"{where} cannot be read: {what}")
