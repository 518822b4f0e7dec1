"""How much the clients' class frequencies differ, and what `shots` do to that."""

import dataclasses

import numpy as np

from fedprompt.datasets._dataset import Dataset
from fedprompt.datasets._partition import Partition, make_partition
from fedprompt.datasets._spec import PartitionSpec

WORTH_A_NOTE = 0.05  # a smaller loss of skew is not mentioned


def label_skew(partition: Partition, dataset: Dataset) -> float:
    """How far clients are from having all classes in equal proportions, from 0 (not at all) to 1.

    The total variation between a client's class frequencies and those of all clients together, averaged over clients.
    """
    labels = np.asarray(dataset.labels)
    counts = np.array([np.bincount(labels[rows], minlength=dataset.num_classes) for rows in partition.train], float)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1).mean() / 2)


def shots_note(spec: PartitionSpec, dataset: Dataset, seed: int) -> str:
    """A warning if `shots` undo a Dirichlet partition's label skew by levelling each client's classes; else empty."""
    if not spec.shots or "dirichlet" not in spec.kind:
        return ""
    skew_without, skew_with_shots = (
        label_skew(make_partition(each, dataset, seed), dataset) for each in (dataclasses.replace(spec, shots=0), spec)
    )
    if skew_without - skew_with_shots < WORTH_A_NOTE:
        return ""
    return (
        f"{spec}: shots={spec.shots} level the classes of each client, so that the label skew falls from "
        f"{skew_without:.2f} to {skew_with_shots:.2f} (mean total variation, 0 to 1); leave shots out to keep it"
    )
