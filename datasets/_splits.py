"""How rows are dealt to clients: pure functions of labels, domains and a generator.

All of them work on row numbers of the data set only, so an image can never meet another image's label.
"""

from collections.abc import Iterable

import numpy as np

from fedprompt.datasets._dataset import Dataset

Rows = list[np.ndarray]
Split = tuple[Rows, Rows]  # train and test rows of every client


def by_class(dataset: Dataset, where: np.ndarray, rng: np.random.Generator) -> Rows:
    """The rows of every class within the mask ``where``, each list in random order."""
    labels = np.asarray(dataset.labels)
    return [rng.permutation(np.flatnonzero(where & (labels == label))) for label in range(dataset.num_classes)]


def gather(parts: Iterable[Rows]) -> Rows:
    """Each client's pieces as one sorted array."""
    return [np.sort(np.concatenate([*pieces, np.empty(0, np.int64)]).astype(np.int64)) for pieces in parts]


def cyclic_domains(clients: int, domains: int, m: int) -> np.ndarray:
    """Mask (clients, domains): client ``k`` holds domains ``k, ..., k+m-1`` modulo their number."""
    offset = (np.arange(domains)[None] - np.arange(clients)[:, None]) % domains
    return offset < m


def shuffle_domains(holders: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random mask with the same number of domains a client and of clients a domain.

    Two clients at a time exchange one domain each that the other lacks, which keeps both numbers.
    """
    holders = rng.permutation(holders)
    if len(holders) < 2:
        return holders
    for _ in range(20 * holders.size):
        one, two = rng.choice(len(holders), size=2, replace=False)
        gives, takes = (
            np.flatnonzero(holders[one] & ~holders[two]),
            np.flatnonzero(holders[two] & ~holders[one]),
        )
        if len(gives):  # rows have equal sums, so then both can give
            pair = [rng.choice(gives), rng.choice(takes)]
            holders[one, pair], holders[two, pair] = [False, True], [True, False]
    return holders


def by_domains(dataset: Dataset, holders: np.ndarray, rng: np.random.Generator) -> Split:
    """Cut every domain into one part a holder; parts differ by at most one image, overall and a class."""
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


def by_classes(dataset: Dataset, clients: int, s: int, rng: np.random.Generator) -> Split:
    """Give every client ``s`` class slots and each slot a share of its class.

    All slots of a level are handed out before the next begins; where a level ends amid a client, that client
    can meet a class twice, hence "at most s classes". What flooring leaves over stays unused.
    """
    slots = s * clients // dataset.num_classes
    draws = rng.uniform(0.4, 0.6, size=(dataset.num_classes, slots))
    shares = draws / draws.sum(axis=1, keepdims=True)
    free = np.full(dataset.num_classes, slots)
    picks: list[list[tuple[int, float]]] = []
    for _ in range(clients):
        chosen = []
        for _ in range(s):
            label = int(rng.choice(np.flatnonzero(free == free.max())))
            free[label] -= 1
            chosen.append((label, float(shares[label, free[label]])))
        picks.append(chosen)
    is_test = np.asarray(dataset.is_test)
    train, test = (_take_shares(by_class(dataset, where, rng), picks) for where in (~is_test, is_test))
    return train, test


def _take_shares(rows: Rows, picks: list[list[tuple[int, float]]]) -> Rows:
    used = [0] * len(rows)
    parts: list[Rows] = []
    for chosen in picks:
        pieces = []
        for label, share in chosen:
            begin = used[label]
            used[label] = begin + int(len(rows[label]) * share)
            pieces.append(rows[label][begin : used[label]])
        parts.append(pieces)
    return gather(parts)


def by_disjoint_classes(dataset: Dataset, groups: Rows, rng: np.random.Generator) -> Split:
    """Every client gets all images of its own group of classes."""
    is_test = np.asarray(dataset.is_test)
    lists = (by_class(dataset, where, rng) for where in (~is_test, is_test))
    train, test = (gather([[rows[label] for label in group] for group in groups]) for rows in lists)
    return train, test


def by_dirichlet(dataset: Dataset, where: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> Split:
    """Cut the rows of ``where`` class by class with shares from Dir(alpha), the same for train and test.

    A client that already holds its even part of the train images gets nothing of the classes that follow.
    """
    is_test = np.asarray(dataset.is_test)
    train_rows, test_rows = (by_class(dataset, where & split, rng) for split in (~is_test, is_test))
    even = sum(map(len, train_rows)) / clients
    train: list[Rows] = [[] for _ in range(clients)]
    test: list[Rows] = [[] for _ in range(clients)]
    held = np.zeros(clients)
    for label in range(dataset.num_classes):
        share = rng.dirichlet(np.full(clients, alpha)) * (held < even)
        if not share.sum() > 0:  # a tiny alpha can put everything on clients that are full (or underflow)
            share = (held < even).astype(float) if (held < even).any() else np.ones(clients)
        ends = np.cumsum(share) / share.sum()
        ends /= ends[-1]
        for parts, rows in ((train, train_rows[label]), (test, test_rows[label])):
            for part, piece in zip(parts, np.split(rows, (ends[:-1] * len(rows)).astype(int)), strict=True):
                part.append(piece)
        held += np.diff((ends * len(train_rows[label])).astype(int), prepend=0)
    return gather(train), gather(test)
