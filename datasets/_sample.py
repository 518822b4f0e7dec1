"""Which of its rows a client keeps: a few of each class, spread over the domains in proportion to what it has."""

from collections.abc import Iterable

import numpy as np

EPSILON = 1e-9  # far below any share of an image, far above rounding errors


def few_shots(
    rows: np.ndarray, labels: np.ndarray, domains: np.ndarray, shots: int, rng: np.random.Generator
) -> np.ndarray:
    """At most ``shots`` of a client's ``rows`` for every class, sorted. Fewer shots give a subset, if drawn alike.

    ``labels`` and ``domains`` are those of the whole data set. The domains of a class keep their proportions.
    """
    sizes = np.unique(labels[rows], return_counts=True)[1]
    turns = (
        number
        for shot in range(min(shots, int(sizes.max(initial=0))))
        for number in np.flatnonzero(sizes > shot).tolist()
    )
    return _spread(rows, labels, domains, turns, rng)


def held_out(
    rows: np.ndarray, labels: np.ndarray, domains: np.ndarray, fraction: float, rng: np.random.Generator
) -> np.ndarray:
    """That fraction of a client's ``rows`` (at least one, never all), every class in proportion up to one image."""
    if not fraction:
        return np.empty(0, np.int64)
    count = min(max(1, round(fraction * len(rows))), len(rows) - 1)
    places = ((np.arange(count) + rng.uniform()) * len(rows) / count).astype(np.int64)  # systematic, in class order
    turns = np.sort(np.unique(labels[rows], return_inverse=True)[1])[places].tolist()
    return _spread(rows, labels, domains, turns, rng)


def _spread(
    rows: np.ndarray, labels: np.ndarray, domains: np.ndarray, turns: Iterable[int], rng: np.random.Generator
) -> np.ndarray:
    """One row per turn, of the class whose place (among the client's classes) the turn gives; sorted.

    The row comes from a domain that is behind its share of the class so far; where several are, from the one that is
    furthest behind in the class and over all classes together. So neither mix is ever more than a rounding away from
    what the client has.
    """
    rows = rng.permutation(rows)
    class_numbers, domain_numbers = (np.unique(values[rows], return_inverse=True)[1] for values in (labels, domains))
    if not len(rows):
        return np.empty(0, np.int64)
    domain_numbers = rng.permutation(domain_numbers.max() + 1)[domain_numbers]  # so that ties favour no domain
    order = np.lexsort((domain_numbers, class_numbers))  # stable: rows of a class and domain stay in random order
    counts = np.zeros((class_numbers.max() + 1, domain_numbers.max() + 1), np.int64)
    np.add.at(counts, (class_numbers, domain_numbers), 1)
    starts = np.cumsum(counts).reshape(counts.shape) - counts
    shares = counts / counts.sum(axis=1, keepdims=True)
    behind_in_class, behind = np.zeros(counts.shape), np.zeros(counts.shape[1])
    taken = np.zeros_like(counts)
    picks = []
    for label in turns:
        behind_in_class[label] += shares[label]
        behind += shares[label]
        urgency = np.where(behind_in_class[label] > EPSILON, behind_in_class[label] + behind, -np.inf)
        domain = int(np.argmax(urgency))
        picks.append(order[starts[label, domain] + taken[label, domain]])
        taken[label, domain] += 1
        behind_in_class[label, domain] -= 1
        behind[domain] -= 1
    return np.sort(rows[np.array(picks, np.int64)])
