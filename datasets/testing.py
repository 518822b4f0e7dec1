"""A small data set without files, for tests of the suite and of plugins."""

import numpy as np

from fedprompt.datasets._dataset import Dataset


def tiny_dataset(classes: int = 10, domains: int = 6, train: int = 20, test: int = 10, size: int = 4) -> Dataset:
    """A data set with ``train`` and ``test`` images of every class in every domain, in mixed order.

    Every pixel of an image is its row modulo 251, so that a test can see which image it got.
    """
    domain, label, place = (axis.ravel() for axis in np.indices((domains, classes, train + test)))
    order = np.random.default_rng(7).permutation(domain.size)
    row = (np.arange(domain.size) % 251).astype(np.uint8)
    return Dataset(
        name="tiny",
        images=np.broadcast_to(row[:, None, None, None], (domain.size, 3, size, size)),
        labels=label[order],
        domains=domain[order],
        is_test=(place >= train)[order],
        class_names=tuple(f"class {k}" for k in range(classes)),
        domain_names=tuple(f"domain {k}" for k in range(domains)),
        checksum=f"tiny {classes} {domains} {train} {test} {size}",
    )
