import numpy as np
import pytest

from fedprompt.datasets import SOURCES
from fedprompt.harness.planning.data import PUBLISHED, published


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_make_a_data_set_with_every_class_in_both_splits(name: str) -> None:
    dataset = published(name)
    assert dataset.num_classes == SOURCES[name].classes
    for split in (dataset.is_test, ~dataset.is_test):
        assert np.bincount(dataset.labels[split], minlength=dataset.num_classes).all()
