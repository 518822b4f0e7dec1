"""Damaged stores and partitions are refused in one line, or are what they were; never a traceback."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedprompt.core.errors import UserError
from fedprompt.datasets import Partition, make_partition, parse_partition
from fedprompt.datasets._store import ARRAYS, open_store, write_store
from fedprompt.datasets.testing import tiny_dataset

ODD: list[Any] = [None, [], {}, 3, -1, 1e308, "", True, [[]], [{}], "x" * 1000]
SPEC = parse_partition("classes:s=1,clients=3")


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Flipped bits, a missing end, or bytes that are inserted, zeroed or left out."""
    place, size = rng.randrange(len(content)), rng.randrange(1, 64)
    before, after = content[:place], content[place + size :]
    flipped = bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
    return before + rng.choice([flipped, b"", after, bytes(size) + after, rng.randbytes(size) + content[place:]])


def with_an_odd_value(value: Any, rng: random.Random) -> Any:
    """A copy in which one value, at any depth, is another one or missing."""
    if not value or not isinstance(value, dict | list) or rng.random() < 0.2:
        return rng.choice(ODD)
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    key = rng.choice(list(copy)) if isinstance(copy, dict) else rng.randrange(len(copy))
    if rng.random() < 0.2:
        del copy[key]
    else:
        copy[key] = with_an_odd_value(copy[key], rng)
    return copy


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_store_is_refused_or_as_it_was(seed: int, tmp_path: Path) -> None:
    rng, data = random.Random(seed), tiny_dataset(classes=3, domains=2, train=3, test=2)
    write_store(tmp_path / "whole", "tiny", {k: getattr(data, k) for k in ARRAYS}, data.class_names, data.domain_names)
    expected = make_partition(SPEC, open_store(tmp_path / "whole"), 0).hash
    refused = 0
    for _ in range(100):
        shutil.rmtree(tmp_path / "damaged", ignore_errors=True)
        shutil.copytree(tmp_path / "whole", tmp_path / "damaged")
        file = tmp_path / "damaged" / rng.choice(["meta.json", "verified.json", *(f"{key}.npy" for key in ARRAYS)])
        if file.suffix == ".json" and rng.random() < 0.7:
            file.write_text(json.dumps(with_an_odd_value(json.loads(file.read_text()), rng)))
        else:
            file.write_bytes(damaged(file.read_bytes(), rng))
        try:
            assert make_partition(SPEC, open_store(tmp_path / "damaged"), 0).hash == expected
        except UserError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_partition_is_refused_or_as_it_was(seed: int, tmp_path: Path) -> None:
    rng, whole = random.Random(seed), make_partition(SPEC, tiny_dataset(classes=3), 0)
    whole.save(tmp_path / "whole.npz")
    content = (tmp_path / "whole.npz").read_bytes()
    refused = 0
    for _ in range(100):
        (tmp_path / "damaged.npz").write_bytes(damaged(content, rng))
        try:
            assert Partition.load(tmp_path / "damaged.npz").hash == whole.hash
        except UserError:
            refused += 1
    assert refused > 50
