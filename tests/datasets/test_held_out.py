"""Partitions that keep classes or a domain out of training."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedprompt.core.errors import UserError
from fedprompt.datasets import Dataset, Partition, make_partition, parse_partition
from fedprompt.datasets.testing import tiny_dataset

KINDS = [
    "disjoint:clients=2",
    "classes:s={classes},clients=2",
    "dirichlet:alpha=5,clients=2,min_size=1",
    "domain-dirichlet:alpha=5,clients=2,min_size=1",
    "domains:m=1",
    "client-lt:alpha=5,clients=2",
]


def partition(text: str, dataset: Dataset, seed: int = 0) -> Partition:
    return make_partition(parse_partition(text), dataset, seed)


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 9), st.integers(0, 2**32), st.sampled_from(KINDS))
def test_nobody_trains_on_novel_classes(classes: int, seed: int, kind: str) -> None:
    dataset, base = tiny_dataset(classes, 2, 8, 6), (classes + 1) // 2
    parts = partition(f"{kind.format(classes=base)},novel=half", dataset, seed)
    held = np.concatenate([*parts.train, *parts.test, *parts.val])
    assert set(dataset.labels[held]) == set(range(base))
    assert np.array_equal(parts.shared["base"], np.flatnonzero(dataset.is_test & (dataset.labels < base)))
    assert np.array_equal(parts.shared["novel"], np.flatnonzero(dataset.is_test & (dataset.labels >= base)))
    assert parts.base_classes == base


@pytest.mark.parametrize(("classes", "base"), [(100, 50), (102, 51), (101, 51), (37, 19), (47, 24)])
def test_base_is_the_first_half_rounded_up(classes: int, base: int) -> None:
    """Caltech101, Flowers102, Food101, Pets and DTD, as published code splits them."""
    parts = partition("disjoint:clients=10,novel=half", tiny_dataset(classes, 1, 2, 1))
    assert parts.label_space("base", classes) == parts.label_space("test", classes) == range(base)
    assert parts.label_space("novel", classes) == range(base, classes)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.integers(0, 2**32), st.sampled_from(KINDS))
def test_nobody_trains_on_the_target_domain(target: int, seed: int, kind: str) -> None:
    dataset = tiny_dataset(4, 4, 8, 6)
    parts = partition(f"{kind.format(classes=4)},target=domain {target}", dataset, seed)
    train, test = np.concatenate(parts.train), np.concatenate(parts.test)
    assert target not in dataset.domains[np.concatenate([train, test])]
    assert not set(train) & set(test)
    assert len(set(train)) == len(train)  # clients of one domain are disjoint
    assert np.array_equal(parts.shared["target"], np.flatnonzero(dataset.domains == target))  # every image, once
    assert parts.label_space("target", 4) == range(4)


def test_one_client_per_remaining_domain_in_their_order() -> None:
    dataset = tiny_dataset(4, 4, 8, 6)
    for seed in (0, 1):
        parts = partition("domains:m=1,target=domain 1", dataset, seed)
        assert [set(dataset.domains[rows]) for rows in parts.train] == [{0}, {2}, {3}]


def test_test_shots_cut_shared_test_sets_by_class() -> None:
    dataset = tiny_dataset(6, 2, 8, 6)
    parts = partition("disjoint:clients=3,novel=half,test_shots=4", dataset)
    counts = {name: np.bincount(dataset.labels[rows], minlength=6).tolist() for name, rows in parts.shared.items()}
    assert counts == {"base": [4, 4, 4, 0, 0, 0], "novel": [0, 0, 0, 4, 4, 4]}


def test_saved_and_loaded_with_what_is_shared(tmp_path: Path) -> None:
    parts = partition("disjoint:clients=3,novel=half", tiny_dataset(6, 2, 8, 6))
    parts.save(tmp_path / "p.npz")
    loaded = Partition.load(tmp_path / "p.npz")
    assert loaded.hash == parts.hash
    assert loaded.base_classes == 3
    assert {name: rows.tolist() for name, rows in loaded.shared.items()} == {
        name: rows.tolist() for name, rows in parts.shared.items()
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("domains:m=1,target=domain 9", "unknown target domain of 'tiny' 'domain 9'. Did you mean"),
        ("disjoint:clients=5,novel=half", "clients=5 but 'base classes of tiny' has 3 classes"),
        ("disjoint:novel=half,target=domain 0", "novel=half and target=domain 0; use one of them"),
        ("disjoint:novel=third", "novel='third'; allowed: none, half"),
    ],
)
def test_what_cannot_be_held_out_is_one_line(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        partition(text, tiny_dataset(6, 2, 8, 6))
    assert message in str(caught.value)


def test_the_only_class_or_domain_cannot_be_held_out() -> None:
    with pytest.raises(UserError, match="needs at least 2 classes, 'tiny' has 1"):
        partition("disjoint:clients=1,novel=half", tiny_dataset(1, 1))
    with pytest.raises(UserError, match="has no other domain than 'domain 0' to train on"):
        partition("disjoint:clients=1,target=domain 0", tiny_dataset(2, 1))
