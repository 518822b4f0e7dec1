"""From a method and its data to a federation."""

from dataclasses import replace

import torch

from fedprompt.harness.conformance.toy import toy_backbone, toy_dataset, toy_partition
from fedprompt.harness.federation.assembly import EXAMPLES, Depth, make_federation
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.head_tune import HeadTune

PROTOCOL = Protocol(head="global")


def test_unseen_clients_never_train_and_show_no_examples() -> None:
    partition = replace(toy_partition(), unseen=(1, 3))
    federation = make_federation(FedVPT, {}, toy_backbone(), toy_dataset(), partition, PROTOCOL)
    assert federation.members == (0, 2)
    members = sorted([*partition.train[0], *partition.train[2]])
    assert torch.equal(federation.method.task.examples, torch.from_numpy(toy_dataset().images[members]))


def test_examples_are_spread_over_many_images() -> None:
    partition = replace(toy_partition(), train=tuple(part.repeat(9) for part in toy_partition().train))
    federation = make_federation(FedVPT, {}, toy_backbone(), toy_dataset(), partition, PROTOCOL)
    assert EXAMPLES <= len(federation.method.task.examples) < 2 * EXAMPLES


def test_features_come_from_the_caller_if_the_method_needs_them() -> None:
    asked: list[Depth] = []

    def features(depth: Depth) -> torch.Tensor:
        asked.append(depth)
        return torch.zeros(100, 32)

    common = toy_backbone(), toy_dataset(), toy_partition(), PROTOCOL
    federation = make_federation(HeadTune, {}, *common, features=features)
    make_federation(FedVPT, {}, *common, features=features)
    assert asked == [None]
    [batch] = federation.data.ordered([0], "test", 8)
    assert not batch.features.any()
    [batch] = make_federation(HeadTune, {}, *common).data.ordered([0], "test", 8)
    assert batch.features.any()
