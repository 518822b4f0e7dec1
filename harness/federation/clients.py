"""The clients' data: who holds which images, and how they become batches."""

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedprompt.backbones.layer_inputs import LayerInputs, PatchFeatures
from fedprompt.datasets import Dataset, Partition
from fedprompt.methods import Batch

SplitName = Literal["train", "test", "val", "base", "novel", "target"]
SHARED_SPLITS: tuple[SplitName, ...] = ("base", "novel", "target")  # the same images for all clients


class ClientData:
    """Images stay where the data set keeps them (often a memory map); a batch copies only its own rows."""

    def __init__(
        self,
        dataset: Dataset,
        partition: Partition,
        needs: frozenset[str],
        features: Tensor | None = None,  # (images of the data set, d) where the method needs them
        device: torch.device | str = "cpu",
        layer_inputs: LayerInputs | None = None,  # where the method reads them
        patches: PatchFeatures | None = None,  # where the method reads them
        image_memory: int = 0,  # bytes of the device that images may take; with less than all, none are kept there
    ) -> None:
        self._images = dataset.images if "images" in needs else None
        self._kept_images: Tensor | None = None
        on_device = self._images is not None and torch.device(device).type != "cpu"
        if on_device and math.prod(dataset.images.shape) <= image_memory:  # one byte per number
            self._kept_images = torch.from_numpy(np.array(dataset.images[:])).to(device)
        self._labels = torch.from_numpy(np.array(dataset.labels))
        self._domains = torch.from_numpy(np.array(dataset.domains))
        self.domain_names = dataset.domain_names
        self._features = features if "features" in needs else None
        self._layer_inputs, self._patches = layer_inputs, patches
        self._rows = {
            split: [torch.from_numpy(np.array(r)) for r in getattr(partition, split)]
            for split in ("train", "test", "val")
        }
        self.num_clients = len(partition.train)
        self.shared = tuple(partition.shared)  # names of test sets that every client is evaluated on, too
        self._rows |= {
            name: [torch.from_numpy(np.array(rows))] * self.num_clients for name, rows in partition.shared.items()
        }
        self._first_label = {split: partition.label_space(split, dataset.num_classes).start for split in self._rows}
        self.device = device

    def size(self, client: int, split: SplitName = "train") -> int:
        return len(self._rows[split][client])

    def counts(self, classes: int) -> Tensor:
        """Training labels of each client, counted, (clients, classes)."""
        return torch.stack([torch.bincount(self._labels[rows], minlength=classes) for rows in self._rows["train"]])

    def rows(self, client: int, split: SplitName) -> Tensor:
        """The places of the client's images in the data set."""
        return self._rows[split][client]

    def labels(self, client: int, split: SplitName) -> Tensor:
        """Classes of the client's images, counted from the first that competes on ``split``: for evaluation alone."""
        return self._labels[self._rows[split][client]] - self._first_label[split]

    def domains(self, client: int, split: SplitName) -> Tensor:
        """The domain of each of the client's images, as places in ``domain_names``."""
        return self._domains[self._rows[split][client]]

    def batch(
        self,
        clients: Sequence[int],
        split: SplitName,
        positions: Sequence[Tensor],
        rngs: Sequence[torch.Generator],
        stage: str = "train",
    ) -> Batch:
        """``positions[i]`` are places in the list of client ``clients[i]``; lists may differ in length.

        Only batches of training data have labels: what predicts or adapts for a prediction cannot read the answers.
        """
        rows = [self._rows[split][client][where] for client, where in zip(clients, positions, strict=True)]
        index = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        sizes = tuple(len(r) for r in rows)
        mask = torch.arange(index.shape[1]) < torch.tensor(sizes)[:, None]
        packed = torch.cat(rows)
        images = features = inputs = patches = torch.empty(0)  # what a method does not need is not there
        if self._kept_images is not None:
            images = self._kept_images[self._sent(packed)]
        elif self._images is not None:
            images = self._sent(torch.from_numpy(self._images[packed.numpy()]))
        if self._features is not None:
            features = self._sent(self._features[index] * mask[..., None])
        if self._layer_inputs is not None:
            inputs = self._layer_inputs(packed)
        if self._patches is not None:
            patches = self._patches(packed)
        labels = self._sent(self._labels[index] * mask) if split == "train" else None
        return Batch(
            tuple(clients),
            labels,
            sizes,
            images,
            features,
            tuple(rngs),
            stage,
            layer_inputs=inputs,
            patches=patches,
            device=self.device,
        )

    def _sent(self, tensor: Tensor) -> Tensor:
        """On the device. A GPU copies from pinned memory while the processor goes on."""
        if torch.device(self.device).type == "cuda" and tensor.device.type == "cpu":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def epoch(
        self,
        clients: Sequence[int],
        batch_size: int,
        orders: Sequence[torch.Generator],
        rngs: Sequence[torch.Generator],
        stage: str,
        head_inputs: Sequence[Tensor] | None = None,
    ) -> Iterator[Batch]:
        """One pass of every client over its training data in its own order; smaller clients finish earlier.

        ``head_inputs``, (n, d) of each client's images, go with the images they belong to.
        """
        shuffled = [torch.randperm(self.size(c), generator=order) for c, order in zip(clients, orders, strict=True)]
        for start in range(0, max(map(len, shuffled)), batch_size):
            places = [s[start : start + batch_size] for s in shuffled]
            batch = self.batch(clients, "train", places, rngs, stage)
            if head_inputs is not None:
                rows = [inputs[where] for inputs, where in zip(head_inputs, places, strict=True)]
                batch = batch.with_head_inputs(torch.cat(rows))
            yield batch

    def ordered(
        self, clients: Sequence[int], split: SplitName, batch_size: int, rngs: Sequence[torch.Generator] = ()
    ) -> Iterator[Batch]:
        """One pass in the stored order, for evaluation and statistics."""
        sizes = [self.size(client, split) for client in clients]
        for start in range(0, max(sizes), batch_size):
            places = [torch.arange(start, max(start, min(start + batch_size, size))) for size in sizes]
            yield self.batch(clients, split, places, rngs, "evaluate")
