"""The one way from a method and its data to a federation: whatever runs, checks or times one makes it here."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.features import frozen_features
from fedprompt.backbones.layer_inputs import LayerInputs, PatchFeatures
from fedprompt.core.fields import build
from fedprompt.datasets import Dataset, Partition
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.clients import ClientData
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.rounds import Federation
from fedprompt.methods import Method, Task

EXAMPLES = 64  # about how many training images a method may look at before any round
Depth = int | None  # blocks of the backbone; None means all


def make_federation(
    method: type[Method],
    params: Mapping[str, Any],
    backbone: FrozenViT,
    dataset: Dataset,
    partition: Partition,
    protocol: Protocol,
    seed: int = 0,
    *,
    features: Callable[[Depth], Tensor] | None = None,
    layer_inputs: Callable[[Depth], LayerInputs] | None = None,
    patches: Callable[[], PatchFeatures] | None = None,
    examples: Tensor | None = None,
    device: str = "cpu",
    image_memory: int = 0,
) -> Federation:
    """``method`` with ``params`` for the clients of ``partition``, ready to start; its unseen clients never train.

    ``features`` and ``layer_inputs`` give what the method reads from the frozen backbone at a depth, ``patches`` its
    embedded patches; without them they are computed here and kept nowhere. ``examples`` replace the training images
    that a method may look at before any round.
    """
    built: Any = build(method.Params, params, f"parameters of {method.name}")
    frozen, inputs = None, None
    if "features" in method.needs:
        depth = hooks.feature_depth(method, built)
        frozen = features(depth) if features else frozen_features(backbone, dataset, depth)
    if (depth := hooks.input_depth(method, built)) != 0:
        inputs = layer_inputs(depth) if layer_inputs else LayerInputs(backbone, dataset.images, depth)
    embedded = None
    if hooks.reads_patches(method):
        embedded = patches() if patches else PatchFeatures(backbone, dataset.images)
    data = ClientData(dataset, partition, method.needs, frozen, device, inputs, embedded, image_memory)
    members = sorted(set(range(partition.num_clients)).difference(partition.unseen))
    if examples is None:
        rows = np.sort(np.concatenate([partition.train[client] for client in members]))
        examples = torch.from_numpy(dataset.images[rows[:: max(1, len(rows) // EXAMPLES)]])

    def about(split: str) -> Method:
        """The method for the classes that compete for images of ``split``."""
        space = partition.label_space(split, dataset.num_classes)
        labels = slice(space.start, space.stop)
        counts = data.counts(dataset.num_classes)[:, labels]
        names, rounds = dataset.class_names[labels], protocol.rounds
        task = Task(names, counts, protocol.head, examples, protocol.head_input, rounds)
        return method(built, backbone, task)

    novel = about("novel") if hooks.is_open_vocabulary(method) and "novel" in partition.shared else None
    return Federation(about("train"), data, protocol, seed, members, novel)
