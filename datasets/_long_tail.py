"""Long tails: classes with fewer and fewer training images, and clients among whom the rare ones live.

All functions work on row numbers, like those of ``_splits.py``.
"""

from dataclasses import replace

import numpy as np

from fedprompt.core.errors import UserError
from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._splits import Rows, TrainTestRows, by_class, gather

ROUNDING = 1e-9  # added before rounding down, so that 500 * 0.01 is 5


def long_tail_sizes(sizes: np.ndarray, imbalance: float) -> np.ndarray:
    """How many training images each class keeps: from the largest class's number down, in the order of labels.

    Class c of C keeps ``largest * imbalance^(c / (C - 1))``, rounded down, or all that it has.
    """
    places = np.arange(len(sizes)) / max(1, len(sizes) - 1)
    kept: np.ndarray = (sizes.max(initial=0) * imbalance**places + ROUNDING).astype(np.int64)
    return np.asarray(np.minimum(sizes, kept))


def long_tailed(
    dataset: Dataset, rows: np.ndarray, imbalance: float, rng: np.random.Generator
) -> tuple[Dataset, np.ndarray]:
    """``dataset``, which is ``rows`` of a larger one, and those rows without the training images that a tail lacks.

    Test images stay. A smaller ``imbalance`` keeps a subset of what a larger one keeps, if drawn alike.
    """
    is_test = np.asarray(dataset.is_test)
    images = by_class(dataset, ~is_test, rng)
    sizes = long_tail_sizes(np.array([len(each) for each in images]), imbalance)
    if not sizes.all():
        name, largest = dataset.class_names[int(np.argmin(sizes))], max(map(len, images))
        raise UserError(
            f"imbalance={imbalance} leaves class {name!r} of {dataset.name!r} without training images; "
            f"use at least {1 / max(1, largest):.2g}"
        )
    kept = [each[:size] for each, size in zip(images, sizes, strict=True)]
    places = np.sort(np.concatenate([np.flatnonzero(is_test), *kept]))
    part = replace(
        dataset,
        name=f"long-tailed {dataset.name}",
        images=np.empty((len(places), 3, 0, 0), np.uint8),
        labels=np.asarray(dataset.labels)[places],
        domains=np.asarray(dataset.domains)[places],
        is_test=is_test[places],
    )
    return part, rows[places]


def tail_classes(sizes: np.ndarray, share: float) -> np.ndarray:
    """Mask of the rarest classes, a ``share`` of all; of equal ones, those with the higher labels."""
    head = int((1 - share) * len(sizes) + ROUNDING)
    mask = np.ones(len(sizes), bool)
    mask[np.argsort(-sizes, kind="stable")[:head]] = False
    return mask


def proportional(total: int, sizes: np.ndarray) -> np.ndarray:
    """``total`` images of classes with these ``sizes``, in proportion, by largest remainders.

    Of equal remainders the larger class counts first, then the smaller label. No class gives more than it has.
    """
    whole = max(1, int(sizes.sum()))
    counts, remainders = np.divmod(total * sizes.astype(np.int64), whole)
    counts[np.lexsort((np.arange(len(sizes)), -sizes, -remainders))[: total - counts.sum()]] += 1
    return counts


def apportioned(total: int, shares: np.ndarray) -> np.ndarray:
    """``total`` in whole numbers, as ``shares`` (which sum to one) say, by largest remainders."""
    exact = total * shares
    counts = (exact + ROUNDING).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: total - counts.sum()]] += 1
    return counts


def tail_budgets(sizes: np.ndarray, tail: np.ndarray, clients: float, spec: float, leak: float) -> np.ndarray:
    """How many training images of each class go to the tail clients.

    Args:
        sizes: training images of each class.
        tail: mask of the tail classes.
        clients: the share q of clients that are tail clients.
        spec: specialisation L. Tail clients get q + (1 - q) L of the tail classes' images.
        leak: how many head images they get in addition: this times q (1 - L) times the number of tail images.
    """
    tail_images, head_images = int(sizes[tail].sum()), int(sizes[~tail].sum())
    of_tail = min(tail_images, round(tail_images * (clients + (1 - clients) * spec)))
    of_head = min(head_images, round(leak * tail_images * clients * (1 - spec)))
    return np.asarray(proportional(of_tail, sizes * tail) + proportional(of_head, sizes * ~tail))


def by_groups(
    dataset: Dataset, budgets: np.ndarray, head_clients: int, clients: int, alpha: float, rng: np.random.Generator
) -> TrainTestRows:
    """Every class cut between head and tail clients by its budget, and within each group by one draw from Dir(alpha).

    Test images are cut by the same shares, so that a client is tested on the mix that it trains on.
    """
    is_test = np.asarray(dataset.is_test)
    train_rows, test_rows = (by_class(dataset, where, rng) for where in (~is_test, is_test))
    train: list[Rows] = []
    test: list[Rows] = []
    for budget, of_train, of_test in zip(budgets, train_rows, test_rows, strict=True):
        head, tail = (_shares(size, alpha, rng) for size in (head_clients, clients - head_clients))
        to_tail = int(budget), round(len(of_test) * float(budget) / max(1, len(of_train)))
        for parts, rows, count in ((train, of_train, to_tail[0]), (test, of_test, to_tail[1])):
            sizes = np.concatenate([apportioned(len(rows) - count, head), apportioned(count, tail)])
            parts.append(np.split(rows, np.cumsum(sizes)[:-1]))
    return gather(zip(*train, strict=True)), gather(zip(*test, strict=True))


def _shares(clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    shares = rng.dirichlet(np.full(clients, alpha))
    return shares if shares.sum() > 0 else np.full(clients, 1 / clients)  # where alpha overflows
