"""Published folders as a careless disk or a malicious stranger may leave them."""

import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

PACKED = ("cells.jsonl.gz", "records.csv.gz")
FILES = (*PACKED, "cells.csv", "suite.toml")


class Damage(NamedTuple):
    """What happens to one file: ``how`` says it, the other values where and with what."""

    file: str
    how: str
    place: float  # of the file's length
    value: Any


NASTY: tuple[Any, ...] = (
    *(None, True, {}, [], "", "../../x", "\x1b[2J", -1, 0, 0.5, float("nan"), float("inf"), 10**400, "1e400"),
    *([[]] * 3, {"a": {"b": {}}}),
)
HOWS = ("cut", "flip", "insert", "empty", "missing", "unpacked", "value", "key", "deep", "line")
DAMAGES = st.builds(
    Damage,
    st.sampled_from(FILES),
    st.sampled_from(HOWS),
    st.floats(0, 1),
    st.sampled_from(NASTY) | st.binary(max_size=9),
)


@contextmanager
def damaged(published: Path, scratch: Path, damage: Damage) -> Iterator[tuple[Path, Path]]:
    """A damaged copy of a published folder, and an empty results folder."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        copy = shutil.copytree(published, Path(folder) / "published")
        path = copy / damage.file
        packed = damage.file in PACKED
        content = path.read_bytes()
        if damage.how == "missing":
            path.unlink()
        elif damage.how in ("cut", "flip", "empty"):
            path.write_bytes(_struck(content, damage))
        else:
            text = _edited(gzip.decompress(content) if packed else content, damage)
            path.write_bytes(gzip.compress(text) if packed and damage.how != "unpacked" else text)
        yield copy, Path(folder) / "out"


def _struck(content: bytes, damage: Damage) -> bytes:
    at = int(damage.place * max(0, len(content) - 1))
    if damage.how == "flip":
        return content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :]
    return content[:at] if damage.how == "cut" else b""


def _edited(content: bytes, damage: Damage) -> bytes:
    """The unpacked content with something else in its place."""
    value = damage.value
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    lines = content.split(b"\n")
    at = int(damage.place * (len(lines) - 1))
    if damage.how == "deep":
        lines[at] = b"[" * 100_000
    elif damage.how == "line":
        lines[at] = raw
    elif damage.how in ("value", "key") and lines[at].startswith(b"{"):
        lines[at] = _changed(json.loads(lines[at]), damage)
    elif damage.how in ("value", "key"):
        values = lines[at].split(b",")
        values[int(damage.place * 7919) % len(values)] = raw
        lines[at] = b",".join(values)
    elif damage.how == "insert":
        where = int(damage.place * len(content))
        return content[:where] + raw + content[where:]
    return b"\n".join(lines)


def _changed(table: dict[str, Any], damage: Damage) -> bytes:
    """One value within the table, however deep, replaced or removed."""
    places = list(_places(table))
    holder, key = places[int(damage.place * 7919) % len(places)]
    if damage.how == "key":
        del holder[key]
    else:
        holder[key] = damage.value.hex() if isinstance(damage.value, bytes) else damage.value
    return json.dumps(table).encode()


def _places(table: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for key, value in table.items():
        yield table, key
        if isinstance(value, dict):
            yield from _places(value)
