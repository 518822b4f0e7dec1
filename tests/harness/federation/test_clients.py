import numpy as np
import pytest
import torch
from torch import Tensor

from fedprompt.core.errors import UserError
from fedprompt.core.rng import torch_rng
from fedprompt.datasets import Partition, make_partition, parse_partition
from fedprompt.datasets.testing import tiny_dataset
from fedprompt.harness.federation.clients import ClientData, SplitName
from fedprompt.methods import Batch

DATA = tiny_dataset(classes=3, domains=1, train=20, test=10)  # 90 images, every pixel of image i is i
TRAIN = ([3, 14, 15, 35, 89], [2, 71], [1, 41, 42, 43, 44, 56, 60, 62])
TEST = ([7, 8], [9], [10, 11, 12])
NEEDS = frozenset({"images", "features"})


def rows(*lists: list[int]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(part, np.int64) for part in lists)


@pytest.fixture
def data() -> ClientData:
    partition = Partition(rows(*TRAIN), rows(*TEST), rows([], [], [5]))
    return ClientData(DATA, partition, NEEDS, torch.arange(90.0)[:, None])


def rngs(clients: tuple[int, ...], purpose: str = "batches") -> list[torch.Generator]:
    return [torch_rng(0, "batches", purpose, client) for client in clients]


def epoch(data: ClientData, clients: tuple[int, ...], size: int) -> list[Batch]:
    return list(data.epoch(clients, size, rngs(clients), rngs(clients, "noise"), "train"))


def images(batch: Batch) -> Tensor:
    """The data set's row of each packed image, which its pixels tell."""
    assert batch.images is not None
    return batch.images[:, 0, 0, 0].long()


def test_every_image_has_its_own_label_and_feature(data: ClientData) -> None:
    seen = 0
    for batch in epoch(data, (0, 1, 2), 3):
        assert batch.features is not None
        assert batch.pack(batch.labels).tolist() == DATA.labels[images(batch)].tolist()
        assert batch.pack(batch.features)[:, 0].tolist() == images(batch).tolist()
        seen += len(images(batch))
    assert seen == 15


@pytest.mark.parametrize(
    "text", ["domains:m=2", "classes:s=2,clients=3", "dirichlet:alpha=0.5,clients=4,min_size=1", "disjoint:clients=3"]
)
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_pair_of_every_client_is_that_of_the_source(text: str, split: SplitName) -> None:
    """Public loaders index labels by client and image paths not at all."""
    dataset = tiny_dataset(classes=3, domains=2, train=20, test=10)  # 180 images
    partition = make_partition(parse_partition(text), dataset, seed=1)
    clients = ClientData(dataset, partition, frozenset({"images"}))
    for client in range(partition.num_clients):
        batches = list(clients.ordered([client], split, 7))
        shown = torch.cat([images(batch) for batch in batches]).numpy()
        assert np.array_equal(shown, getattr(partition, split)[client])
        assert np.array_equal(clients.rows(client, split), shown)
        assert np.array_equal(clients.labels(client, split), dataset.labels[shown])


@pytest.mark.parametrize("split", ["test", "val"])
def test_what_is_predicted_has_no_labels(data: ClientData, split: SplitName) -> None:
    batch = next(data.ordered([2], split, 2, rngs((2,))))
    assert batch.given_labels is None
    with pytest.raises(UserError, match="no labels"):
        _ = batch.labels


def test_an_epoch_visits_each_sample_once_and_keeps_partial_batches(data: ClientData) -> None:
    batches = epoch(data, (0, 1, 2), 3)
    assert [batch.mask.sum(1).tolist() for batch in batches] == [[3, 2, 3], [2, 0, 3], [0, 0, 2]]
    owners = torch.cat([batch.rows(torch.arange(3)) for batch in batches])
    visited = torch.cat([images(batch) for batch in batches])
    for client in range(3):
        assert sorted(visited[owners == client].tolist()) == TRAIN[client]


def test_padding_is_zero(data: ClientData) -> None:
    batch = epoch(data, (2, 1), 4)[0]
    assert batch.features is not None
    assert batch.labels[~batch.mask].eq(0).all()
    assert batch.features[~batch.mask].eq(0).all()


def test_order_differs_between_epochs_and_is_the_clients_own(data: ClientData) -> None:
    orders = rngs((2,))
    first, second = (torch.cat([images(b) for b in data.epoch([2], 8, orders, orders, "train")]) for _ in range(2))
    assert first.tolist() != second.tolist()
    beside = epoch(data, (0, 2), 8)[0]
    assert images(beside)[beside.rows(torch.tensor([0, 2])) == 2].tolist() == first.tolist()


def test_evaluation_goes_through_a_split_in_stored_order(data: ClientData) -> None:
    batches = list(data.ordered([2, 0], "test", 2, rngs((2, 0))))
    assert [images(batch).tolist() for batch in batches] == [[10, 11, 7, 8], [12]]
    assert {batch.stage for batch in batches} == {"evaluate"}


def test_sizes_and_label_counts(data: ClientData) -> None:
    assert [data.size(client) for client in range(3)] == [5, 2, 8]
    assert (data.size(2, "test"), data.size(2, "val"), data.size(0, "val")) == (3, 1, 0)
    assert data.counts(3).tolist() == [np.bincount(DATA.labels[part], minlength=3).tolist() for part in TRAIN]


def test_only_what_the_method_needs_is_there() -> None:
    partition = Partition(rows(*TRAIN), rows(*TEST), rows([], [], []))
    batch = epoch(ClientData(DATA, partition, frozenset({"images"}), torch.zeros(90, 1)), (0,), 4)[0]
    assert batch.features.numel() == 0
    batch = epoch(ClientData(DATA, partition, frozenset({"features"}), torch.zeros(90, 1)), (0,), 4)[0]
    assert batch.images.numel() == 0
