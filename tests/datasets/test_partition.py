import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedprompt.core.errors import UserError
from fedprompt.datasets import Partition, make_partition, parse_partition
from fedprompt.datasets.testing import tiny_dataset


def partition(text: str, seed: int = 0, val_fraction: float = 0.0, **sizes: int) -> Partition:
    return make_partition(parse_partition(text), tiny_dataset(**sizes), seed, val_fraction)


def test_cyclic_domains() -> None:
    data, parts = tiny_dataset(), partition("domains:m=2")
    assert [sorted(set(data.domains[rows])) for rows in parts.train] == [
        [0, 1],
        [1, 2],
        [2, 3],
        [3, 4],
        [4, 5],
        [0, 5],
    ]
    assert [len(rows) for rows in parts.train] == [200] * 6
    assert [len(rows) for rows in parts.test] == [100] * 6


def test_one_domain_per_client_is_the_whole_domain() -> None:
    data, parts = tiny_dataset(), partition("domains:m=1")
    for domain, rows in enumerate(parts.train):
        assert np.array_equal(rows, np.flatnonzero((data.domains == domain) & ~data.is_test))


def test_classes_on_the_paper_shape_use_the_published_number_of_test_images() -> None:
    parts = partition("classes:s=5", classes=100, domains=1, train=500, test=100)
    assert abs(sum(map(len, parts.test)) - 9741) < 40  # 9741 with one seed of the reference code
    assert 420 < min(map(len, parts.train)) < 460
    assert 540 < max(map(len, parts.train)) < 580


def test_a_client_can_draw_a_class_twice_hence_at_most_s() -> None:
    data = tiny_dataset(classes=100, domains=1, train=60, test=30)
    parts = make_partition(parse_partition("classes:s=15"), data, 0)
    distinct = [len(set(data.labels[rows])) for rows in parts.train]
    assert max(distinct) == 15
    assert min(distinct) in (13, 14)


def test_validation_is_cut_from_train_in_proportion() -> None:
    data, whole, cut = tiny_dataset(), partition("domains:m=1"), partition("domains:m=1", val_fraction=0.1)
    assert [len(rows) for rows in cut.val] == [20] * 6
    assert np.array_equal(np.sort(np.concatenate([cut.train[0], cut.val[0]])), whole.train[0])
    assert np.bincount(data.labels[cut.val[0]]).tolist() == [2] * 10
    assert all(np.array_equal(a, b) for a, b in zip(cut.test, whole.test, strict=True))


def test_no_validation_by_default() -> None:
    assert [len(rows) for rows in partition("domains:m=1").val] == [0] * 6


def test_shots_are_nested() -> None:
    data, few, more = tiny_dataset(), partition("domains:m=1,shots=2"), partition("domains:m=1,shots=4")
    assert np.bincount(data.labels[few.train[3]]).tolist() == [2] * 10
    assert set(few.train[3]) < set(more.train[3])


def test_test_shots_cut_only_the_test_data() -> None:
    data, whole, few = tiny_dataset(), partition("domains:m=1"), partition("domains:m=1,test_shots=1")
    assert np.bincount(data.labels[few.test[2]]).tolist() == [1] * 10
    assert all(set(a) < set(b) for a, b in zip(few.test, whole.test, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(few.train, whole.train, strict=True))


def test_unseen_half() -> None:
    assert partition("domains:m=2").unseen == ()
    assert partition("domains:m=2,unseen=last_half").unseen == (3, 4, 5)
    halves = {partition("domains:m=2,unseen=half", seed=seed).unseen for seed in range(8)}
    assert len(halves) > 1
    assert all(len(half) == 3 for half in halves)


def test_saved_and_loaded(tmp_path: Path) -> None:
    parts = partition("domains:m=2,unseen=half", val_fraction=0.2)
    parts.save(tmp_path / "p.npz")
    loaded = Partition.load(tmp_path / "p.npz")
    assert loaded.hash == parts.hash
    assert loaded.unseen == parts.unseen
    for split in ("train", "test", "val"):
        for saved_rows, loaded_rows in zip(getattr(parts, split), getattr(loaded, split), strict=True):
            assert np.array_equal(saved_rows, loaded_rows)
            assert loaded_rows.dtype == np.int64
    assert [path.name for path in tmp_path.iterdir()] == ["p.npz"]


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    parts = partition("domains:m=2")
    parts.save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as file:
        arrays = dict(file)
    arrays["train"][0] += 1
    np.savez(tmp_path / "p.npz", **arrays)
    with pytest.raises(UserError, match="does not match its hash"):
        Partition.load(tmp_path / "p.npz")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    partition("domains:m=2").save(tmp_path / "p.npz")
    (tmp_path / "p.npz").write_bytes((tmp_path / "p.npz").read_bytes()[:100])
    with pytest.raises(UserError, match="cannot be read"):
        Partition.load(tmp_path / "p.npz")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train", np.array([-1])),
        ("train", np.array([0.5])),
        ("train", np.array([[1]])),
        ("train_sizes", np.array([-5, 5])),
        ("train_sizes", np.array(["x"])),
        ("unseen", np.array([[1, 2]])),
        ("base_classes", np.array([1, 2])),
        ("hash", np.array([])),
    ],
)
def test_odd_arrays_are_one_line(tmp_path: Path, name: str, value: np.ndarray) -> None:
    partition("domains:m=2").save(tmp_path / "p.npz")
    with np.load(tmp_path / "p.npz") as file:
        arrays = {**file, name: value}
    np.savez(tmp_path / "p.npz", **arrays)
    with pytest.raises(UserError, match=r"^partition file .*make it again$"):
        Partition.load(tmp_path / "p.npz")


@pytest.mark.parametrize("content", [b"", b"PK\5\6" + bytes(18)])
def test_an_empty_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.npz").write_bytes(content)
    with pytest.raises(UserError, match="cannot be read"):
        Partition.load(tmp_path / "p.npz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("domains:m=7", "m=7 but 'tiny' has 6 domains; use m=1..6"),
        ("domains:m=2,clients=7", "clients=7 is not a multiple of the 6 domains of 'tiny'; use clients=6"),
        ("classes:s=11", "s=11 but 'tiny' has 10 classes"),
        (
            "classes:s=3,clients=7",
            "s*clients=21 is not divisible by the 10 classes of 'tiny'; use clients=10",
        ),
        ("classes:s=1,clients=60", "leaves client 3 with 0 test images, at least 1 needed"),
    ],
)
def test_values_that_do_not_fit_the_data(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        partition(text, train=20, test=1)
    assert message in str(caught.value)


def test_the_hash_does_not_depend_on_pythonhashseed() -> None:
    code = (
        "from fedprompt.datasets.testing import tiny_dataset as t; from fedprompt.datasets import *;"
        "print(make_partition(parse_partition('classes:s=5,clients=8'), t(), 3).hash)"
    )
    seeds = ({**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2"))
    runs = [subprocess.check_output([sys.executable, "-c", code], env=env) for env in seeds]
    assert runs[0] == runs[1]
    assert runs[0].decode().strip() == partition("classes:s=5,clients=8", seed=3).hash
