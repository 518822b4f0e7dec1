"""Classes or a domain that no client trains on, and the test sets that all clients then share."""

from dataclasses import replace

import numpy as np

from fedprompt.core.errors import UserError, unknown
from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._spec import PartitionSpec


def trained_classes(spec: PartitionSpec, dataset: Dataset) -> int:
    """How many classes are trained on under ``spec``: always the first ones, by label."""
    count = dataset.num_classes
    if spec.novel == "none":
        return count
    if count < 2:
        raise UserError(f"partition '{spec}': novel=half needs at least 2 classes, {dataset.name!r} has {count}")
    return (count + 1) // 2


def training_part(spec: PartitionSpec, dataset: Dataset) -> tuple[Dataset, np.ndarray]:
    """The part of ``dataset`` that is divided among clients, without images, and its rows in ``dataset``."""
    labels, domains = np.asarray(dataset.labels), np.asarray(dataset.domains)
    if spec.novel == "none" and not spec.target:
        return dataset, np.arange(len(labels))
    first_novel, target = trained_classes(spec, dataset), _target(spec, dataset)
    rows = np.flatnonzero((labels < first_novel) & (domains != target))
    trained_domains = [number for number in range(len(dataset.domain_names)) if number != target]
    part = replace(
        dataset,
        name=f"{dataset.name} without {spec.target}" if spec.target else f"base classes of {dataset.name}",
        images=np.empty((len(rows), 3, 0, 0), np.uint8),
        labels=labels[rows],
        domains=np.searchsorted(trained_domains, domains[rows]),
        is_test=np.asarray(dataset.is_test)[rows],
        class_names=dataset.class_names[:first_novel],
        domain_names=tuple(dataset.domain_names[number] for number in trained_domains),
    )
    return part, rows


def shared_test_sets(spec: PartitionSpec, dataset: Dataset) -> dict[str, np.ndarray]:
    """Rows of `base` and `novel` (test images of trained and of other classes), or of `target` (a whole domain)."""
    labels, is_test = np.asarray(dataset.labels), np.asarray(dataset.is_test)
    if spec.target:
        return {"target": np.flatnonzero(np.asarray(dataset.domains) == _target(spec, dataset))}
    if spec.novel == "none":
        return {}
    is_base = labels < trained_classes(spec, dataset)
    return {"base": np.flatnonzero(is_test & is_base), "novel": np.flatnonzero(is_test & ~is_base)}


def _target(spec: PartitionSpec, dataset: Dataset) -> int:
    """The number of the domain that is left out; -1 for none."""
    if not spec.target:
        return -1
    if spec.target not in dataset.domain_names:
        raise unknown(f"target domain of {dataset.name!r}", spec.target, dataset.domain_names)
    if len(dataset.domain_names) == 1:
        raise UserError(f"partition '{spec}': {dataset.name!r} has no other domain than {spec.target!r} to train on")
    return dataset.domain_names.index(spec.target)
