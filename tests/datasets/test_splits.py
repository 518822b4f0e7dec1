"""Properties of every partition, over random sizes, classes, clients and parameters."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedprompt.core.errors import UserError
from fedprompt.datasets import Dataset, Partition, _spec, make_partition, parse_partition
from fedprompt.datasets.testing import tiny_dataset

seeds = st.integers(0, 2**32)
few = settings(max_examples=40, deadline=None)


def ragged_dataset(seed: int, classes: int, domains: int, rows: int) -> Dataset:
    """Random labels, domains and splits, with at least two images of each split in every class and domain."""
    rng = np.random.default_rng(seed)
    base = tiny_dataset(classes, domains, 2, 2)
    labels = np.concatenate([base.labels, rng.integers(classes, size=rows)])
    where = np.concatenate([base.domains, rng.integers(domains, size=rows)])
    is_test = np.concatenate([base.is_test, rng.random(rows) < 0.3])
    images = np.zeros((len(labels), 3, 1, 1), np.uint8)
    return Dataset("ragged", images, labels, where, is_test, base.class_names, base.domain_names, "")


datasets = st.builds(
    ragged_dataset, seeds, classes=st.integers(1, 9), domains=st.integers(1, 5), rows=st.integers(0, 400)
)


def partition_or_skip(text: str, dataset: Dataset, seed: int, val_fraction: float = 0.0) -> Partition:
    try:
        return make_partition(parse_partition(text), dataset, seed, val_fraction)
    except UserError:
        assume(False)
        raise


def check_disjoint(partition: Partition, dataset: Dataset, exhaustive: bool) -> None:
    train = np.concatenate([*partition.train, *partition.val])
    test = np.concatenate(partition.test)
    assert len(np.unique(train)) == len(train)
    assert len(np.unique(test)) == len(test)
    assert not dataset.is_test[train].any()
    assert dataset.is_test[test].all()
    if exhaustive:
        assert len(train) + len(test) == len(dataset.labels)


def counts(rows: np.ndarray, dataset: Dataset) -> np.ndarray:
    return np.bincount(dataset.labels[rows], minlength=dataset.num_classes)


@few
@given(datasets, seeds, st.data(), st.sampled_from(["cyclic", "random_regular"]), st.integers(1, 2))
def test_domains(dataset: Dataset, seed: int, data: st.DataObject, assignment: str, multiple: int) -> None:
    count = len(dataset.domain_names)
    m = data.draw(st.integers(1, count))
    text = f"domains:m={m},clients={multiple * count},assignment={assignment}"
    partition = partition_or_skip(text, dataset, seed)
    check_disjoint(partition, dataset, exhaustive=True)
    for rows in partition.train:
        assert len(np.unique(dataset.domains[rows])) <= m
    for domain in range(count):
        held = [rows[dataset.domains[rows] == domain] for rows in partition.train]
        parts = [rows for rows in held if len(rows)]
        assert len(parts) <= m * multiple
        sizes = [counts(rows, dataset) for rows in parts]
        if len(parts) == m * multiple:  # otherwise the domain has fewer images than holders
            assert np.ptp([size.sum() for size in sizes]) <= 1
            assert np.ptp(sizes, axis=0).max() <= 1


@pytest.mark.parametrize("m", [1, 2, 3, 5, 6])
def test_random_regular_graphs_are_regular_and_depend_on_the_seed(m: int) -> None:
    dataset = tiny_dataset()
    spec = parse_partition(f"domains:m={m},assignment=random_regular")
    seen = set()
    for seed in range(5):
        held = np.array(
            [np.bincount(dataset.domains[r], minlength=6) > 0 for r in make_partition(spec, dataset, seed).train]
        )
        assert (held.sum(axis=0) == m).all()
        assert (held.sum(axis=1) == m).all()
        seen.add(held.tobytes())
    assert len(seen) == (1 if m == 6 else 5)


@few
@given(datasets, seeds, st.data())
def test_classes(dataset: Dataset, seed: int, data: st.DataObject) -> None:
    s = data.draw(st.integers(1, dataset.num_classes))
    step = dataset.num_classes // np.gcd(s, dataset.num_classes)
    clients = step * data.draw(st.integers(1, 3))
    partition = partition_or_skip(f"classes:s={s},clients={clients}", dataset, seed)
    check_disjoint(partition, dataset, exhaustive=False)
    slots = s * clients // dataset.num_classes
    total = [counts(np.flatnonzero(dataset.is_test == split), dataset) for split in (False, True)]
    for train, test in zip(partition.train, partition.test, strict=True):
        assert (counts(train, dataset) > 0).sum() <= s
        share = [counts(rows, dataset) / whole for rows, whole in ((train, total[0]), (test, total[1]))]
        # equal shares up to flooring, which a class drawn twice meets twice
        assert (np.abs(share[0] - share[1]) <= 2 / np.minimum(*total) + 1e-9).all()
    for whole, parts in zip(total, (partition.train, partition.test), strict=True):
        used = sum(counts(rows, dataset) for rows in parts)
        assert (used <= whole).all()
        assert (used > whole - slots - 1e-9).all()  # flooring leaves less than one image per slot


@few
@given(datasets, seeds, st.floats(0.05, 100), st.integers(1, 6), st.integers(1, 4))
def test_dirichlet(dataset: Dataset, seed: int, alpha: float, clients: int, min_size: int) -> None:
    text = f"dirichlet:alpha={alpha},clients={clients},min_size={min_size}"
    partition = partition_or_skip(text, dataset, seed)
    check_disjoint(partition, dataset, exhaustive=True)
    assert min(map(len, partition.train + partition.test)) >= min_size
    total = [counts(np.flatnonzero(dataset.is_test == split), dataset) for split in (False, True)]
    for train, test in zip(partition.train, partition.test, strict=True):
        apart = np.abs(counts(train, dataset) / total[0] - counts(test, dataset) / total[1])
        assert (apart <= 1 / total[0] + 1 / total[1] + 1e-9).all()


@few
@given(datasets, seeds, st.floats(0.1, 10), st.integers(1, 3))
def test_domain_dirichlet(dataset: Dataset, seed: int, alpha: float, clients: int) -> None:
    text = f"domain-dirichlet:alpha={alpha},clients={clients},min_size=1"
    partition = partition_or_skip(text, dataset, seed)
    check_disjoint(partition, dataset, exhaustive=True)
    assert partition.num_clients == clients * len(dataset.domain_names)
    for client, rows in enumerate(partition.train):
        assert set(dataset.domains[rows]) == {client // clients}


@few
@given(datasets, seeds, st.data())
def test_disjoint(dataset: Dataset, seed: int, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, dataset.num_classes))
    partition = partition_or_skip(f"disjoint:clients={clients}", dataset, seed)
    check_disjoint(partition, dataset, exhaustive=True)
    held = [set(dataset.labels[rows]) for rows in partition.train]
    assert held == [set(dataset.labels[rows]) for rows in partition.test]
    assert sorted(label for labels in held for label in labels) == list(range(dataset.num_classes))
    assert np.ptp([len(labels) for labels in held]) <= 1


@pytest.mark.parametrize(("classes", "sizes"), [(37, [4] * 9 + [1]), (47, [5] * 9 + [2]), (102, [10] * 9 + [12])])
def test_the_public_disjoint_rule_is_not_even(classes: int, sizes: list[int]) -> None:
    dataset = tiny_dataset(classes, 1, 2, 1)
    partition = make_partition(parse_partition("disjoint:clients=10,rule=public"), dataset, 0)
    assert [len(set(dataset.labels[rows])) for rows in partition.train] == sizes


PARTITIONS = {  # hashes without and with held-out data
    "domains:m=2": ("e637733bff6f", "1f9ad41c70c7"),
    "domains:m=2,assignment=random_regular,shots=3": ("2ee2db43d02a", "158cb13d4844"),
    "classes:s=5,clients=8": ("b535eab0668d", "d2afdc2d8510"),
    "dirichlet:alpha=0.5,clients=10": ("db94e8ee7c9b", "5741ef44a4fe"),
    "disjoint:clients=5,shots=4": ("209173aa2fd3", "98462ccb9c7e"),
    "domain-dirichlet:alpha=0.3,clients=3,unseen=half": ("69ecf1c62cfc", "5c11399edafa"),
    "client-lt:alpha=0.5,clients=8,tail=0.3,imbalance=0.1": ("fcce3eb40426", "9f6d828872df"),
}


@pytest.mark.parametrize("text", PARTITIONS)
def test_same_key_same_bits_other_seed_other_rows(text: str) -> None:
    parts = [make_partition(parse_partition(text), tiny_dataset(), seed, 0.1) for seed in (0, 0, 1)]
    assert parts[0].hash == parts[1].hash
    for split in ("train", "test", "val"):  # every one, since a change of any would change the hash
        same, other = (
            [np.array_equal(a, b) for a, b in zip(getattr(parts[0], split), getattr(part, split), strict=True)]
            for part in parts[1:]
        )
        assert all(same)
        assert not all(other)


@pytest.mark.parametrize("kind", ["dirichlet:alpha=0.5,clients=3", "domain-dirichlet:alpha=0.5,clients=3"])
def test_classes_of_equal_size_are_shared_out_differently(kind: str) -> None:
    """A generator that is seeded again for every class gives all of them one vector of shares."""
    dataset = tiny_dataset(classes=6, domains=1, train=60, test=30)
    partition = make_partition(parse_partition(f"{kind},min_size=1"), dataset, 0)
    shares = np.stack([counts(rows, dataset) for rows in partition.train], axis=1)  # (classes, clients)
    assert len(np.unique(shares, axis=0)) == 6


@pytest.mark.parametrize("text", PARTITIONS)
def test_partitions_are_pinned(text: str) -> None:
    """Published records carry these hashes: a change here changes every result."""
    hashes = (make_partition(parse_partition(text), tiny_dataset(), 0, fraction).hash[:12] for fraction in (0, 0.1))
    assert tuple(hashes) == PARTITIONS[text]


@few
@given(datasets, seeds, st.floats(0.05, 0.9), st.integers(0, 5), st.integers(1, 3))
def test_validation_and_shots(dataset: Dataset, seed: int, fraction: float, shots: int, clients: int) -> None:
    text = f"disjoint:clients={clients},shots={shots}"
    partition = partition_or_skip(text, dataset, seed, fraction)
    check_disjoint(partition, dataset, exhaustive=False)
    for train, val in zip(partition.train, partition.val, strict=True):
        assert len(train) >= 1
        assert len(val) >= 1
        per_class = counts(train, dataset) + counts(val, dataset)
        assert not shots or per_class.max() <= shots
        ideal = per_class * len(val) / per_class.sum()
        assert (np.abs(counts(val, dataset) - ideal) <= 1).all()


def table(rows: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Images per class and domain."""
    shape = (dataset.num_classes, len(dataset.domain_names))
    cells = np.ravel_multi_index((dataset.labels[rows], dataset.domains[rows]), shape)
    return np.bincount(cells, minlength=shape[0] * shape[1]).reshape(shape)


def check_domain_mix(sample: np.ndarray, whole: np.ndarray) -> None:
    """In every class and in all, ``sample`` has the domain mix of ``whole``: no domain is off by two images."""
    expected = whole * sample.sum(axis=1, keepdims=True) / np.maximum(whole.sum(axis=1, keepdims=True), 1)
    assert np.abs(sample - expected).max() < 2
    total_variation = np.abs((sample - expected).sum(axis=0)).sum() / 2 / sample.sum()
    assert total_variation < sample.shape[1] / sample.sum()


@few
@given(datasets, seeds, st.integers(1, 12), st.floats(0.05, 0.9), st.sampled_from(["domains:m=", "disjoint:clients="]))
def test_shots_and_validation_keep_the_domain_mix(
    dataset: Dataset, seed: int, shots: int, fraction: float, kind: str
) -> None:
    text = f"{kind}{1 if kind.startswith('disjoint') else len(dataset.domain_names)}"
    whole = partition_or_skip(text, dataset, seed)
    cut = partition_or_skip(f"{text},shots={shots},test_shots={shots}", dataset, seed)
    halves = partition_or_skip(text, dataset, seed, fraction)
    for client in range(whole.num_clients):
        train, test = table(whole.train[client], dataset), table(whole.test[client], dataset)
        for sample, before in ((cut.train[client], train), (cut.test[client], test)):
            assert (counts(sample, dataset) == np.minimum(before.sum(axis=1), shots)).all()
            check_domain_mix(table(sample, dataset), before)
        check_domain_mix(table(halves.val[client], dataset), train)


@few
@given(datasets, seeds, st.integers(1, 9), st.integers(1, 9))
def test_fewer_shots_are_a_subset_of_more(dataset: Dataset, seed: int, first: int, second: int) -> None:
    fewer, more = (
        partition_or_skip(f"disjoint:clients=1,shots={shots},test_shots={shots}", dataset, seed)
        for shots in sorted((first, second))
    )
    assert set(fewer.train[0]) <= set(more.train[0])
    assert set(fewer.test[0]) <= set(more.test[0])


def test_five_test_shots_of_six_domains_leave_out_each_domain_equally_often() -> None:
    dataset = tiny_dataset(classes=12, domains=6)
    partition = make_partition(parse_partition("domains:m=6,test_shots=5"), dataset, 0)
    for rows in partition.test:
        assert table(rows, dataset).sum(axis=0).tolist() == [10] * 6


def test_a_draw_that_leaves_a_client_short_is_followed_by_another() -> None:
    """A generator that is seeded again for every attempt would repeat the same draw for ever."""
    dataset, spec = tiny_dataset(6, 1, 30, 15), parse_partition("dirichlet:alpha=0.1,clients=4,min_size=5")
    for seed in range(5):
        assert min(map(len, make_partition(spec, dataset, seed).test)) >= 5


def test_an_impossible_dirichlet_partition_names_the_client_that_is_short() -> None:
    with pytest.raises(UserError, match=r"client \d+ still has \d test images, min_size=10; use fewer clients"):
        make_partition(parse_partition("dirichlet:alpha=0.5,clients=10"), tiny_dataset(10, 1, 20, 10), 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dirichlet:alpha=0.5,clients=10000", "10000 clients with at least 10 test images each, but 'tiny' has 600"),
        ("dirichlet:alpha=0.5,clients=61", "use clients=1..60 or a smaller min_size"),
        (
            "domain-dirichlet:alpha=0.5,clients=51",
            "2 test images each, but domain 'domain 0' has 100; use clients=1..50",
        ),
        ("domains:m=1,clients=999999996", "999999996 clients with at least 1 test images each, but 'tiny' has 600"),
        ("classes:s=1,clients=999999990", "use clients=1..600"),
        ("classes:s=10,clients=600", "600 clients share each class, and no share of 'tiny' has an image"),
        ("disjoint:clients=999999999", "'tiny' has 10 classes; use clients=1..10"),
    ],
)
def test_impossible_partitions_are_refused_before_anything_is_drawn(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_spec, "numpy_rng", None)
    with pytest.raises(UserError) as caught:
        make_partition(parse_partition(text), tiny_dataset(), 0)
    assert message in str(caught.value)


def test_more_shots_than_images_keep_all_of_them() -> None:
    whole, cut = (
        make_partition(parse_partition(f"domains:m=2{more}"), tiny_dataset(), 0) for more in ("", ",shots=999999999")
    )
    assert whole.hash == cut.hash


def test_a_tiny_alpha_still_gives_every_image_to_a_client() -> None:
    dataset = tiny_dataset(10, 1, 50, 20)
    partition = make_partition(parse_partition("dirichlet:alpha=1e-6,clients=3,min_size=1"), dataset, 0)
    check_disjoint(partition, dataset, exhaustive=True)
