"""What plans know of public data sets that are not at hand."""

from pathlib import Path

import numpy as np
import pytest

from fedprompt.core.errors import UserError
from fedprompt.datasets import SOURCES, make_partition, parse_partition, plan_labels


def test_a_target_domain_can_be_planned_by_name() -> None:
    part = make_partition(parse_partition("domains:m=1,clients=6,target=photo"), SOURCES["pacs"].published(), seed=0)
    assert part.num_clients == 6
    assert len(part.shared["target"]) == 1670


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.sizes])
def test_published_sizes_make_a_data_set_with_every_class_in_both_splits(name: str) -> None:
    dataset = SOURCES[name].published()
    assert dataset.num_classes == SOURCES[name].classes
    assert len(dataset.domain_names) == len(set(dataset.domains.tolist())) == len(SOURCES[name].sizes)
    for split in (dataset.is_test, ~dataset.is_test):
        assert np.bincount(dataset.labels[split], minlength=dataset.num_classes).all()


def test_every_public_data_set_but_one_has_sizes_in_words() -> None:
    assert [name for name, source in SOURCES.items() if not source.sizes_note] == ["inaturalist"]


def test_published_sizes_are_planned_with_and_named() -> None:
    dataset, note = plan_labels("domainnet")
    assert "domainnet is not at hand: the paper's 1,830 train images per domain" in note
    assert np.bincount(dataset.domains[~dataset.is_test]).tolist() == [1830] * 6
    assert np.bincount(dataset.labels[dataset.is_test]).tolist() == [468] * 10


def test_labels_are_read_from_a_folder_without_decoding(tmp_path: Path) -> None:
    for domain in ("amazon", "caltech", "dslr", "webcam"):
        for label in range(10):
            (tmp_path / domain / f"class{label}").mkdir(parents=True)
            for image in range(5):
                (tmp_path / domain / f"class{label}" / f"{image}.jpg").touch()
    dataset, note = plan_labels("office-caltech10", tmp_path)
    assert note == ""
    assert (len(dataset.labels), int(dataset.is_test.sum())) == (200, 40)


def test_sizes_that_nobody_knows_are_asked_for() -> None:
    with pytest.raises(UserError, match="fedprompt prepare inaturalist"):
        plan_labels("inaturalist")
