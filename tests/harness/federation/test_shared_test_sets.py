"""Test sets that all clients share: base and novel classes, a target domain."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fedprompt.datasets import Partition
from fedprompt.harness.conformance.toy import toy_dataset, toy_federation
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.rounds import Federation
from fedprompt.harness.federation.schedule import schedule
from fedprompt.harness.measuring.evaluation import Record, evaluate
from fedprompt.harness.measuring.metrics import per_round, records_frame, summarise
from fedprompt.methods import Batch, OpenVocabulary, State
from fedprompt.methods.head_tune import HeadTune


class LastName(HeadTune, OpenVocabulary):
    """Answers the last of the classes that it is asked about."""

    name = "last-name"

    def predict(self, theta: State, batch: Batch) -> Tensor:  # noqa: ARG002
        return torch.arange(float(self.task.num_classes)).expand(*batch.shape, -1)


def base_to_novel() -> Partition:
    """Two clients with one base class (0, 1) each; classes 2 and 3 are novel, with 3 and 2 images."""
    labels = toy_dataset().labels

    def rows(counts: dict[int, int]) -> np.ndarray:
        return np.sort(np.concatenate([np.flatnonzero(labels == k)[-n:] for k, n in counts.items()]))

    train, test = (rows({0: 4}), rows({1: 4})), (rows({0: 2}), rows({1: 3}))
    shared = {"base": rows({0: 2, 1: 3}), "novel": rows({2: 3, 3: 2})}
    return Partition(train, test, (train[0][:0],) * 2, shared=shared, base_classes=2)


def federation_of(method: type[HeadTune], **protocol: object) -> Federation:
    """The method for base classes, and again for novel ones if it can."""
    return toy_federation(method, partition=base_to_novel(), **protocol)


def counts(records: list[Record]) -> list[tuple[str, int, int, int]]:
    return [(r.test_set, r.client, r.correct, r.total) for r in records]


def test_labels_of_novel_classes_begin_at_zero_again() -> None:
    federation = federation_of(LastName)
    assert sorted(federation.data.labels(0, "novel").tolist()) == [0, 0, 0, 1, 1]
    assert federation.data.labels(1, "test").tolist() == [1, 1, 1]


def test_every_client_is_counted_on_its_own_and_on_the_shared_images() -> None:
    federation = federation_of(LastName)
    assert counts(evaluate(federation, federation.start())) == [
        ("local", 0, 0, 2),
        ("local", 1, 3, 3),
        ("base", 0, 3, 5),  # class 1 of 0 and 1
        ("base", 1, 3, 5),
        ("novel", 0, 2, 5),  # class 3 of 2 and 3
        ("novel", 1, 2, 5),
    ]


def test_a_head_has_no_novel_number() -> None:
    federation = federation_of(HeadTune)
    assert {record.test_set for record in evaluate(federation, federation.start())} == {"local", "base"}


def test_predictions_on_shared_images_are_not_restricted_to_local_classes() -> None:
    federation = federation_of(LastName, mask_local_classes=True)
    assert ("novel", 0, 2, 5) in counts(evaluate(federation, federation.start()))


def test_shared_test_sets_are_evaluated_in_reported_rounds_and_never_while_tuning() -> None:
    protocol = Protocol(rounds=4, last=1, eval_every=2, head="global", finetune_epochs=1)
    rounds = list(schedule(protocol, [(0, 1, 2)] * protocol.rounds, range(3), (), 3, ("base", "novel")))
    shared = [[evaluation.shared for evaluation in scheduled.evaluations] for scheduled in rounds]
    assert shared == [[], [(), ()], [], [("base", "novel")] * 2]  # with and without fine-tuning
    tuning = Protocol(rounds=1, last=1, head="global", val_fraction=0.5)
    [scheduled] = schedule(tuning, [(0, 1, 2)] * tuning.rounds, range(3), (), 3, ("base", "novel"))
    assert [evaluation.shared for evaluation in scheduled.evaluations] == [()]


def summary(accuracies: dict[str, tuple[int, ...]]) -> dict[str, float]:
    """Of one round in which each client had so many of ten images right."""
    records = [
        Record(1, client, "all", right, 10, True, test_set=name)
        for name, of_clients in accuracies.items()
        for client, right in enumerate(of_clients)
    ]
    return summarise(records_frame(records), rounds=1, last=1, never_sampled="as_is")


def test_harmonic_means() -> None:
    numbers = summary({"local": (9, 7), "base": (6, 6), "novel": (3, 9)})
    assert (numbers["average"], numbers["base_average"], numbers["novel_average"]) == pytest.approx((0.8, 0.6, 0.6))
    assert numbers["harmonic_mean"] == pytest.approx(3 / (1 / 0.8 + 1 / 0.6 + 1 / 0.6))
    assert numbers["harmonic_mean_base_novel"] == pytest.approx(0.6)
    each = [3 / (1 / 0.9 + 1 / 0.6 + 1 / 0.3), 3 / (1 / 0.7 + 1 / 0.6 + 1 / 0.9)]
    assert numbers["harmonic_mean_clients"] == pytest.approx(sum(each) / 2)


def test_a_harmonic_mean_with_zero_is_zero() -> None:
    assert summary({"local": (9,), "base": (6,), "novel": (0,)})["harmonic_mean"] == 0


def test_a_published_log_gives_its_own_harmonic_means() -> None:
    """A log that ships with FedTPG's code: 80.90, 73.61 and 76.24 make 76.80, the last two 74.90."""
    rows = [
        Record(1, 0, "all", n, 10_000, True, test_set=s) for s, n in (("local", 8090), ("base", 7361), ("novel", 7624))
    ]
    numbers = summarise(records_frame(rows), 1, 1, "as_is")
    assert round(100 * numbers["harmonic_mean"], 2) == 76.80
    assert round(100 * numbers["harmonic_mean_base_novel"], 2) == 74.90


def test_average_is_that_of_the_clients_own_images() -> None:
    own = summary({"local": (9, 7)})
    assert "base_average" not in own
    shared = summary({"local": (9, 7), "target": (1, 2)})
    assert own == {name: value for name, value in shared.items() if name != "target_average"}
    assert shared["target_average"] == pytest.approx(0.15)


def test_records_of_older_runs_are_those_of_the_clients_own_images() -> None:
    frame = records_frame([Record(1, 0, "all", 5, 10, True)]).drop(columns="test_set")
    assert per_round(frame)["average"].tolist() == [0.5]
