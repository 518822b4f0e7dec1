"""The real CIFAR-100 and Office-Caltech10, if $FEDPROMPT_REAL_DATA holds them (cifar100/, office_caltech10/)."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedprompt.datasets import load_dataset, make_partition, parse_partition, prepare
from fedprompt.datasets._images import to_array
from fedprompt.datasets._sources import SOURCES

ROOT = Path(os.environ.get("FEDPROMPT_REAL_DATA", ""))
pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif("FEDPROMPT_REAL_DATA" not in os.environ, reason="set FEDPROMPT_REAL_DATA to run"),
]


def test_cifar100() -> None:
    preparation = prepare("cifar100", ROOT)
    assert preparation.dataset is not None
    assert preparation.dataset.images.shape == (60_000, 3, 32, 32)
    assert set(np.bincount(preparation.dataset.labels[preparation.dataset.is_test])) == {100}
    assert (len(preparation.duplicates), sum(pair.across for pair in preparation.duplicates)) == (26, 10)
    assert preparation.unreadable == ()
    start = time.perf_counter()
    dataset = load_dataset("cifar100")
    partition = make_partition(parse_partition("classes:s=10"), dataset, 0)
    pixels = dataset.images[partition.train[0]]
    assert time.perf_counter() - start < 1
    assert len(pixels) == len(partition.train[0])


@pytest.mark.parametrize("name", ["cifar100", "office-caltech10"])
def test_images_and_labels_are_those_of_the_files(name: str) -> None:
    dataset, listing = load_dataset(name, root=ROOT), SOURCES[name].listing(ROOT)
    for row in np.random.default_rng(0).choice(len(dataset.labels), 200, replace=False):
        file = Path(str(listing.images[row]))
        assert dataset.class_names[dataset.labels[row]] == file.parent.name
        assert dataset.is_test[row] == (file.parts[-3] == "test") or name != "cifar100"
        assert np.array_equal(dataset.images[row], to_array(Image.open(file).convert("RGB"), dataset.image_size))


def test_office_caltech10() -> None:
    preparation = prepare("office-caltech10", ROOT)
    assert preparation.dataset is not None
    assert preparation.dataset.image_size == 224
    assert [preparation.count(domain=name) for name in preparation.dataset.domain_names] == [958, 1123, 157, 295]
    assert (len(preparation.duplicates), sum(pair.across for pair in preparation.duplicates)) == (26, 12)
    partition = make_partition(parse_partition("domain-dirichlet:alpha=0.3,clients=5"), preparation.dataset, 0)
    assert partition.num_clients == 20
