import numpy as np
import pytest

from fedprompt.datasets import SOURCES, make_partition, parse_partition
from fedprompt.harness.planning.data import PUBLISHED, published


def test_a_target_domain_can_be_planned_by_name() -> None:
    part = make_partition(parse_partition("domains:m=1,clients=6,target=photo"), published("pacs"), seed=0)
    assert part.num_clients == 6
    assert len(part.shared["target"]) == 1670


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_make_a_data_set_with_every_class_in_both_splits(name: str) -> None:
    dataset = published(name)
    assert dataset.num_classes == SOURCES[name].classes
    assert len(dataset.domain_names) == len(set(dataset.domains.tolist()))
    for split in (dataset.is_test, ~dataset.is_test):
        assert np.bincount(dataset.labels[split], minlength=dataset.num_classes).all()
