"""How rows are divided among clients: pure functions of labels, domains and a generator.

All of them work on row numbers of the data set only, so an image can never get another image's label. They return the
train rows and the test rows of every client, each sorted.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedprompt.datasets._dataset import Dataset

Rows = list[np.ndarray]
TrainTestRows = tuple[Rows, Rows]  # one array per client in each

MIN_SHARE, MAX_SHARE = 0.4, 0.6  # of a class, before a class's shares are scaled to sum to one
Slot = tuple[int, float]  # a class, and the share of its images that goes with it


def by_class(dataset: Dataset, where: np.ndarray, rng: np.random.Generator) -> Rows:
    """The rows of every class within the mask ``where``, each list in random order."""
    labels = np.asarray(dataset.labels)
    return [rng.permutation(np.flatnonzero(where & (labels == label))) for label in range(dataset.num_classes)]


def gather(parts: Iterable[Iterable[np.ndarray]]) -> Rows:
    """Each client's pieces as one sorted array."""
    return [np.sort(np.concatenate([*pieces, np.empty(0, np.int64)]).astype(np.int64)) for pieces in parts]


def cyclic_domains(clients: int, domains: int, m: int) -> np.ndarray:
    """Mask (clients, domains): client ``k`` holds domains ``k, ..., k+m-1`` modulo their number."""
    offset = (np.arange(domains)[None] - np.arange(clients)[:, None]) % domains
    return offset < m


def shuffle_domains(holders: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random mask with as many domains per client, and clients per domain, as ``holders`` has.

    Two clients at a time swap one domain each that the other lacks, which changes neither number.
    """
    holders = rng.permutation(holders)
    if len(holders) < 2:
        return holders
    for _ in range(20 * holders.size):
        left, right = rng.choice(len(holders), size=2, replace=False)
        only_left = np.flatnonzero(holders[left] & ~holders[right])
        only_right = np.flatnonzero(holders[right] & ~holders[left])
        if len(only_left):  # rows have equal sums, so the other client has a domain to give as well
            swapped = [rng.choice(only_left), rng.choice(only_right)]
            holders[left, swapped], holders[right, swapped] = [False, True], [True, False]
    return holders


def by_domains(dataset: Dataset, holders: np.ndarray, rng: np.random.Generator) -> TrainTestRows:
    """Cut every domain into one part per holder; parts differ by at most one image, in total and in each class.

    ``holders`` is a mask (clients, domains), as :func:`cyclic_domains` and :func:`shuffle_domains` make it.
    """
    domains, is_test = np.asarray(dataset.domains), np.asarray(dataset.is_test)
    train: list[Rows] = [[] for _ in holders]
    test: list[Rows] = [[] for _ in holders]
    for domain in range(holders.shape[1]):
        clients = np.flatnonzero(holders[:, domain])
        for parts, where in ((train, ~is_test), (test, is_test)):
            rows = np.concatenate(by_class(dataset, where & (domains == domain), rng))
            for place, client in enumerate(clients):
                parts[client].append(rows[place :: len(clients)])  # dealt like cards, class after class
    return gather(train), gather(test)


def by_classes(dataset: Dataset, clients: int, s: int, rng: np.random.Generator) -> TrainTestRows:
    """Give every client ``s`` class slots and each slot a share of its class.

    One slot of every class is handed out before any class gives a second one. A client that is served across that
    boundary may draw the same class twice, hence "at most s classes". Images left over by rounding down stay unused.
    """
    slots = s * clients // dataset.num_classes
    draws = rng.uniform(MIN_SHARE, MAX_SHARE, size=(dataset.num_classes, slots))
    shares = draws / draws.sum(axis=1, keepdims=True)
    free = np.full(dataset.num_classes, slots)
    slots_of: list[list[Slot]] = []
    for _ in range(clients):
        client_slots = []
        for _ in range(s):
            label = int(rng.choice(np.flatnonzero(free == free.max())))
            free[label] -= 1
            client_slots.append((label, float(shares[label, free[label]])))
        slots_of.append(client_slots)
    is_test = np.asarray(dataset.is_test)
    train, test = (_take_shares(by_class(dataset, where, rng), slots_of) for where in (~is_test, is_test))
    return train, test


def any_share_has_an_image(dataset: Dataset, slots: int) -> bool:
    """Whether the largest share that :func:`by_classes` can draw is at least one image, in train and in test.

    ``slots`` is the number of clients that share a class.
    """
    largest = MAX_SHARE / (MAX_SHARE + MIN_SHARE * (slots - 1))
    is_test, labels = np.asarray(dataset.is_test), np.asarray(dataset.labels)
    return all(int(np.bincount(labels[split]).max(initial=0) * largest) for split in (~is_test, is_test))


def _take_shares(rows: Rows, slots_of: list[list[Slot]]) -> Rows:
    used = [0] * len(rows)
    parts: list[Rows] = []
    for client_slots in slots_of:
        pieces = []
        for label, share in client_slots:
            begin = used[label]
            used[label] = begin + int(len(rows[label]) * share)
            pieces.append(rows[label][begin : used[label]])
        parts.append(pieces)
    return gather(parts)


def by_disjoint_classes(dataset: Dataset, groups: Rows, rng: np.random.Generator) -> TrainTestRows:
    """Every client gets all images of its group of classes; ``groups`` lists the labels of each client."""
    is_test = np.asarray(dataset.is_test)
    lists = (by_class(dataset, where, rng) for where in (~is_test, is_test))
    train, test = (gather([[rows[label] for label in group] for group in groups]) for rows in lists)
    return train, test


@dataclass(frozen=True)
class DirichletDraw:
    """Rows cut class by class with shares from Dir(alpha), the same for train and test.

    A client that already holds an equal share of the train images gets nothing of the classes that follow.
    """

    splits: tuple[Rows, Rows]  # train and test rows of every class, in random order
    ends: np.ndarray  # (classes, clients): where each client's share of a class ends, from 0 to 1

    @classmethod
    def draw(
        cls, dataset: Dataset, where: np.ndarray, clients: int, alpha: float, rng: np.random.Generator
    ) -> "DirichletDraw":
        """Draw the shares of all classes, in the order of their labels; ``where`` selects the images to divide."""
        is_test = np.asarray(dataset.is_test)
        train_rows, test_rows = (by_class(dataset, where & split, rng) for split in (~is_test, is_test))
        even = sum(map(len, train_rows)) / clients
        client_sizes = np.zeros(clients)
        ends = np.empty((dataset.num_classes, clients))
        for label, rows in enumerate(train_rows):
            share = rng.dirichlet(np.full(clients, alpha)) * (client_sizes < even)
            if not share.sum() > 0:  # a tiny alpha can put everything on clients that are full (or underflow)
                share = (client_sizes < even).astype(float) if (client_sizes < even).any() else np.ones(clients)
            ends[label] = np.cumsum(share) / share.sum()
            ends[label] /= ends[label, -1]
            client_sizes += np.diff((ends[label] * len(rows)).astype(int), prepend=0)
        return cls((train_rows, test_rows), ends)

    def sizes(self) -> np.ndarray:
        """(2, clients): how many train and test images each client gets."""
        numbers = [np.array([len(rows) for rows in split]) for split in self.splits]
        return np.array([np.diff((self.ends * n[:, None]).astype(int), axis=1, prepend=0).sum(axis=0) for n in numbers])

    def rows(self) -> TrainTestRows:
        """The rows that the drawn shares come to."""
        train, test = (gather(zip(*map(self._pieces, split, self.ends), strict=True)) for split in self.splits)
        return train, test

    @staticmethod
    def _pieces(rows: np.ndarray, ends: np.ndarray) -> Rows:
        return np.split(rows, (ends[:-1] * len(rows)).astype(int))
