"""Long-tailed classes and clients: the published counts, and what holds for every draw."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedprompt.core.errors import UserError
from fedprompt.datasets import Dataset, Partition, make_partition, parse_partition
from fedprompt.datasets._long_tail import apportioned, long_tail_sizes, proportional, tail_budgets, tail_classes
from fedprompt.datasets.testing import tiny_dataset

seeds = st.integers(0, 2**32)
few = settings(max_examples=40, deadline=None)
CIFAR = tiny_dataset(100, 1, 500, 100, 1)  # labels and split as in CIFAR-100


def divided(text: str, dataset: Dataset = CIFAR, seed: int = 0) -> Partition:
    return make_partition(parse_partition(text), dataset, seed)


def class_counts(parts: Any, dataset: Dataset = CIFAR) -> np.ndarray:
    """(clients, classes)"""
    return np.stack([np.bincount(dataset.labels[rows], minlength=dataset.num_classes) for rows in parts])


# -- classes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("imbalance", "images", "rarest", "segments"),
    [(0.01, 10_847, 5, [35, 34, 31]), (0.02, 12_608, 10, [41, 40, 19]), (0.1, 19_573, 50, [69, 31, 0])],
)
def test_cifar_100_has_the_published_counts(imbalance: float, images: int, rarest: int, segments: list[int]) -> None:
    sizes = long_tail_sizes(np.full(100, 500), imbalance)
    assert (sizes.sum(), sizes[0], sizes[-1]) == (images, 500, rarest)
    assert [(sizes > 100).sum(), ((sizes > 20) & (sizes <= 100)).sum(), (sizes <= 20).sum()] == segments


@few
@given(st.lists(st.integers(1, 600), min_size=1, max_size=60), st.floats(0.001, 1))
def test_a_class_keeps_no_more_than_it_has_and_equal_ones_get_no_larger(sizes: list[int], imbalance: float) -> None:
    kept = long_tail_sizes(np.array(sizes), imbalance)
    assert (kept <= sizes).all()
    level = long_tail_sizes(np.full(len(sizes), 500), imbalance)
    assert (np.diff(level) <= 0).all()
    assert level[0] == 500


@pytest.mark.parametrize("kind", ["disjoint:clients=10", "classes:s=10,clients=20", "dirichlet:alpha=1,clients=5"])
def test_every_kind_of_partition_may_have_a_long_tail(kind: str) -> None:
    whole, thin = divided(kind), divided(f"{kind},imbalance=0.1")
    held = class_counts(thin.train).sum(0)
    assert (held <= long_tail_sizes(np.full(100, 500), 0.1)).all()
    assert held[0] > 400
    assert sum(map(len, thin.test)) > 0.9 * sum(map(len, whole.test))  # test images stay; shares are rounded
    assert not CIFAR.is_test[np.concatenate(thin.train)].any()


def test_a_longer_tail_keeps_a_subset_and_another_seed_other_images() -> None:
    short, long, other = (
        set(np.concatenate(divided(f"disjoint:clients=10,imbalance={factor}", seed=seed).train))
        for factor, seed in ((0.1, 0), (0.02, 0), (0.1, 1))
    )
    assert long < short
    assert short != other


def test_a_class_without_images_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"imbalance=0.01 leaves class 'class 6' .* use at least 0\.05"):
        divided("disjoint:clients=2,imbalance=0.01", tiny_dataset(10, 1, 20, 10))


# -- clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("imbalance", "tail", "head", "to_tail", "leaked"),
    [(0.01, 153, 10_694, 119, 11), (0.02, 290, 12_318, 225, 22), (0.1, 1_249, 18_324, 968, 94)],
)
def test_the_published_budgets(imbalance: float, tail: int, head: int, to_tail: int, leaked: int) -> None:
    held = class_counts(divided(f"client-lt:alpha=0.5,imbalance={imbalance}").train)
    assert (held[:, 80:].sum(), held[:, :80].sum()) == (tail, head)
    assert (held[27:, 80:].sum(), held[27:, :80].sum()) == (to_tail, leaked)


@pytest.mark.parametrize(("spec", "purity"), [(0, 0.25), (0.25, 0.59), (0.5, 0.79), (0.75, 0.91), (1, 1)])
def test_purity_of_the_tail_clients_does_not_depend_on_the_data(spec: float, purity: float) -> None:
    sizes = np.array([50_000] * 8 + [9_000, 1_000])
    budgets = tail_budgets(sizes, tail_classes(sizes, 0.2), 0.1, spec, 3)
    assert budgets[8:].sum() / budgets.sum() == pytest.approx(purity, abs=0.005)


@few
@given(seeds, st.integers(2, 12), st.integers(2, 12), st.floats(0, 1), st.floats(0.1, 5), st.floats(0, 20))
def test_every_image_goes_to_one_client(
    seed: int, classes: int, clients: int, spec: float, alpha: float, leak: float
) -> None:
    dataset = tiny_dataset(classes, 1, 30, 20)
    text = f"client-lt:alpha={alpha},clients={clients},tail=0.3,tail_classes=0.4,spec={spec},leak={leak}"
    try:
        partition = divided(text, dataset, seed)
    except UserError:  # a client without images, or no head or tail clients
        assume(False)
    for parts, is_test in ((partition.train, False), (partition.test, True)):
        assert np.array_equal(np.sort(np.concatenate(parts)), np.flatnonzero(dataset.is_test == is_test))
    train, test = class_counts(partition.train, dataset) / 30, class_counts(partition.test, dataset) / 20
    assert np.abs(train - test).max() <= 1.5 / 20 + 1.5 / 30


def test_full_specialisation_keeps_head_and_tail_apart() -> None:
    held = class_counts(divided("client-lt:alpha=0.5,imbalance=0.02,spec=1").train)
    assert held[:27, 80:].sum() == held[27:, :80].sum() == 0
    assert held[27:, 80:].sum() == 290


def test_without_specialisation_tail_clients_have_their_share_of_the_tail() -> None:
    held = class_counts(divided("client-lt:alpha=0.5,imbalance=0.02,spec=0").train)
    assert held[27:, 80:].sum() == 29  # a tenth of 290
    assert held[27:, :80].sum() == 87  # three times as many


def test_the_same_seed_gives_the_same_and_another_seed_other_clients() -> None:
    same, again, other = (divided("client-lt:alpha=0.5,imbalance=0.02", seed=seed).hash for seed in (3, 3, 4))
    assert same == again != other


def test_the_order_of_images_within_a_class_does_not_change_the_counts() -> None:
    dataset = tiny_dataset(10, 1, 30, 20)
    order = np.random.default_rng(0).permutation(len(dataset.labels))
    shuffled = dataclasses.replace(dataset, labels=dataset.labels[order], is_test=dataset.is_test[order])
    first, second = (
        class_counts(divided("client-lt:alpha=1,clients=5,tail=0.2", each).train, each) for each in (dataset, shuffled)
    )
    assert np.array_equal(first, second)


def test_tail_classes_are_the_rarest_wherever_they_stand() -> None:
    assert tail_classes(np.array([3, 50, 9, 50, 9]), 0.4).tolist() == [True, False, False, False, True]


def test_two_clients_are_one_of_each_kind() -> None:
    partition = divided("client-lt:alpha=1,clients=2,spec=1", tiny_dataset(10, 1, 30, 20))
    assert class_counts(partition.train, tiny_dataset(10, 1, 30, 20)).tolist() == [
        [30] * 8 + [0] * 2,
        [0] * 8 + [30] * 2,
    ]


def test_an_alpha_that_overflows_means_equal_shares() -> None:
    held = class_counts(divided("client-lt:alpha=1e308,imbalance=0.02").train)
    assert np.ptp(held[:27], axis=0).max() <= 1


def test_a_client_without_images_is_named() -> None:
    with pytest.raises(UserError, match="leaves client 4 with 0 train images"):
        divided("client-lt:alpha=1,clients=5,spec=0,leak=0,tail=0.2,tail_classes=0.1", tiny_dataset(10, 1, 2, 2))


def test_without_tail_classes_there_is_no_partition() -> None:
    with pytest.raises(UserError, match=r"tail_classes=0\.0 of the 10 classes of 'tiny' are none or all"):
        divided("client-lt:alpha=1,tail_classes=0", tiny_dataset(10, 1, 30, 20))


def test_largest_remainders() -> None:
    assert proportional(5, np.array([10, 10, 4])).tolist() == [2, 2, 1]
    assert proportional(1, np.array([3, 5, 5])).tolist() == [0, 1, 0]  # of equal remainders the smaller label
    assert proportional(2, np.array([1, 3])).tolist() == [0, 2]  # both remainders are a half: the larger class
    assert proportional(0, np.array([0, 0])).tolist() == [0, 0]
    assert apportioned(10, np.array([0.55, 0.25, 0.2])).tolist() == [6, 2, 2]
    assert apportioned(0, np.array([0.5, 0.5])).tolist() == [0, 0]
