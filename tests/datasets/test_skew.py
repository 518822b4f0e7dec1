import dataclasses

import numpy as np
import pytest

from fedprompt.datasets import Partition, label_skew, make_partition, parse_partition, shots_note
from fedprompt.datasets.testing import tiny_dataset


def test_skew_is_nothing_for_equal_clients_and_most_for_single_classes() -> None:
    dataset = dataclasses.replace(tiny_dataset(), labels=np.array([0, 0, 1, 1]), class_names=("a", "b"))

    def skew(*clients: list[int]) -> float:
        rows = tuple(np.array(client) for client in clients)
        return label_skew(Partition(rows, rows, rows), dataset)

    assert skew([0, 2], [1, 3]) == 0
    assert skew([0, 1], [2, 3]) == pytest.approx(0.5)


def test_shots_after_dirichlet_say_what_they_do_to_the_skew() -> None:
    dataset = tiny_dataset()
    spec = parse_partition("dirichlet:alpha=0.3,clients=3,min_size=2,shots=1")
    before = label_skew(make_partition(dataclasses.replace(spec, shots=0), dataset, 0), dataset)
    after = label_skew(make_partition(spec, dataset, 0), dataset)
    assert before > after
    assert f"from {before:.2f} to {after:.2f}" in shots_note(spec, dataset, 0)


def test_partitions_without_shots_or_shares_need_no_note() -> None:
    for text in ("dirichlet:alpha=0.3,clients=3,min_size=2", "disjoint:clients=2,shots=1"):
        assert shots_note(parse_partition(text), tiny_dataset(), 0) == ""
