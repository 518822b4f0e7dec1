import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedprompt.datasets import Partition
from fedprompt.harness.conformance import toy
from fedprompt.harness.conformance.toy import toy_dataset, toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.policy import applicable, policy_protocol
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.harness.measuring.evaluation import Record, adapt, evaluate, evaluate_unseen, records_of, score_clients
from fedprompt.methods import Batch, Constants, Method, SeveralDraws, Stage, State, registry
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.head_tune import HeadTune


class Stubborn(HeadTune):
    """Ranks the classes 3, 2, 1, 0 whatever the image shows."""

    name = "stubborn"

    def predict(self, theta: State, batch: Batch) -> Tensor:  # noqa: ARG002
        return torch.arange(4.0).expand(*batch.shape, 4)


def by_class(train: Sequence[dict[int, int]], test: Sequence[dict[int, int]]) -> Partition:
    """Clients that hold so many images of each class; test images may be shared by clients."""
    labels = toy_dataset().labels

    def rows(counts: dict[int, int]) -> np.ndarray:
        return np.concatenate([np.empty(0, int), *(np.flatnonzero(labels == k)[:count] for k, count in counts.items())])

    return Partition(tuple(map(rows, train)), tuple(map(rows, test)), tuple(map(rows, test)))


TEST = ({3: 3, 0: 1}, {3: 1, 2: 4}, {1: 2}, {3: 11})  # of which Stubborn gets 3 of 4, 1 of 5, 0 of 2, 11 of 11


def after(method: type, cohorts: Sequence[Sequence[int]], **options: Any) -> tuple[Federation, FederationState]:
    federation = toy_federation(method, {"lr": 0.3}, **options)
    state = federation.start()
    for cohort in cohorts:
        federation.step(state, cohort)
    return federation, state


def counted(records: list[Record]) -> list[tuple[int, int, int]]:
    return [(r.client, r.correct, r.total) for r in records]


def equal(a: FederationState, b: FederationState) -> bool:
    def flat(state: FederationState) -> dict[tuple[Any, ...], Tensor]:
        parts = {"server": {0: state.server}, "personal": state.personal, "local": state.local}
        return {(p, k, n): t for p, of in parts.items() for k, one in of.items() for n, t in one.items()}

    left, right = flat(a), flat(b)
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


# -- counting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"stack": 1}, {"stack": 3}])
def test_correct_predictions_are_counted_for_each_client(options: dict[str, int]) -> None:
    federation, state = after(Stubborn, [], partition=by_class([{0: 2}] * 4, TEST), **options)
    assert counted(evaluate(federation, state)) == [(0, 3, 4), (1, 1, 5), (2, 0, 2), (3, 11, 11)]


def test_only_the_clients_asked_for_and_the_split_asked_for() -> None:
    partition = by_class([{0: 2}] * 4, TEST)
    partition = Partition(partition.train, partition.test, partition.val[::-1])
    federation, state = after(Stubborn, [], partition=partition)
    assert counted(evaluate(federation, state, clients=[1, 3])) == [(1, 1, 5), (3, 11, 11)]
    assert counted(evaluate(federation, state, "val")) == [(0, 11, 11), (1, 0, 2), (2, 1, 5), (3, 3, 4)]


def test_predictions_restricted_to_the_classes_of_the_client() -> None:
    train = [{0: 2, 1: 2}, {2: 1, 1: 2}, {0: 3}, {0: 1, 1: 1, 2: 1, 3: 1}]
    federation, state = after(Stubborn, [], partition=by_class(train, TEST), mask_local_classes=True)
    # Ranked 3, 2, 1, 0, the clients now answer 1, 2, 0 and 3; padding, whose label reads 0, is nobody's success.
    expected = [(0, 0, 4), (1, 4, 5), (2, 0, 2), (3, 11, 11)]
    assert counted(evaluate(federation, state)) == expected
    assert counted(evaluate(federation, state, clients=[1, 3])) == [expected[1], expected[3]]


def test_each_domain_of_a_client_has_its_record(monkeypatch: pytest.MonkeyPatch) -> None:
    domains = np.array(toy_dataset().labels % 2)  # classes 0 and 2 are of one domain, 1 and 3 of another
    dataset = dataclasses.replace(toy_dataset(), domains=domains, domain_names=("even", "odd"))
    monkeypatch.setattr(toy, "toy_dataset", lambda: dataset)
    federation, state = after(Stubborn, [], partition=by_class([{0: 2}] * 4, [*TEST[:3], {}]), batch_size=2)
    assert [(r.client, r.domain, r.correct, r.total) for r in evaluate(federation, state)] == [
        (0, "even", 0, 1),
        (0, "odd", 3, 3),
        (1, "even", 0, 4),
        (1, "odd", 1, 1),
        (2, "odd", 0, 2),
        (3, "", 0, 0),
    ]


def test_records_say_the_round_and_who_took_part() -> None:
    federation, state = after(HeadTune, [[0, 2], [2, 3]])
    records = evaluate(federation, state)
    assert [(r.round, r.client, r.participated, r.unseen) for r in records] == [
        (2, 0, True, False),
        (2, 1, False, False),
        (2, 2, True, False),
        (2, 3, True, False),
    ]


def test_learning_shows() -> None:
    federation, state = after(HeadTune, [[0, 1, 2, 3]] * 20)
    records = evaluate(federation, state)
    assert sum(r.correct for r in records) >= 12  # chance is 5
    assert sum(r.total for r in records) == 20


# -- clients that never took part -------------------------------------------------------------------------------------


def test_finetune_adapts_a_copy_of_the_head_alone() -> None:
    federation, state = after(FedVPT, [[0, 1]], never_sampled="finetune")
    before = copy.deepcopy(state)
    theta = adapt(federation, state, [2, 3], epochs=2)
    start = federation.personal(state, 2)
    assert torch.equal(theta["prompt"], state.server["prompt"].expand(2, -1, -1))
    assert not torch.equal(theta["head.weight"][0], start["head.weight"])
    expected = records_of(score_clients(federation, state, theta, [2, 3], "test"))
    assert evaluate(federation, state)[2:] == expected
    assert equal(state, before)


def test_as_is_evaluates_the_untrained_head() -> None:
    federation, state = after(FedVPT, [[0, 1]], never_sampled="as_is")
    _, theta = federation.theta(state, [2, 3])
    assert evaluate(federation, state)[2:] == records_of(score_clients(federation, state, theta, [2, 3], "test"))


def test_the_policies_give_different_numbers() -> None:
    """Else the two tests above would not tell them apart."""
    totals = []
    for policy in ("finetune", "as_is"):
        federation, state = after(FedVPT, [[0, 1]], never_sampled=policy, epochs=10)
        totals.append(sum(r.correct for r in evaluate(federation, state, clients=[2, 3])))
    assert totals[0] > totals[1]


def test_exclude_marks_the_clients_to_leave_out() -> None:
    federation, state = after(FedVPT, [[0, 1]], never_sampled="exclude")
    assert [r.participated for r in evaluate(federation, state)] == [True, True, False, False]


def test_a_client_that_took_part_is_not_adapted() -> None:
    federation, state = after(HeadTune, [[0, 1]], head="local", never_sampled="finetune", epochs=1)
    _, theta = federation.theta(state, [0, 1])
    assert torch.equal(theta["head.bias"][1], state.personal[1]["head.bias"])
    assert evaluate(federation, state, clients=[0, 1]) == records_of(
        score_clients(federation, state, theta, [0, 1], "test")
    )


def test_with_a_global_head_nobody_needs_adapting(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, state = after(HeadTune, [[0, 1]], never_sampled="finetune")
    monkeypatch.setattr(federation.method, "loss", None)  # training would call it
    assert len(evaluate(federation, state)) == 4


def test_unseen_clients_adapt_and_are_marked() -> None:
    federation, state = after(FedVPT, [[0, 1]], never_sampled="as_is")
    theta = adapt(federation, state, [2, 3], federation.protocol.epochs)
    expected = records_of(score_clients(federation, state, theta, [2, 3], "test"))
    records = evaluate_unseen(federation, state, [2, 3])
    assert counted(records) == counted(expected)
    assert all(r.unseen and not r.participated for r in records)


# -- adaptation of everybody ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "epochs"), [(HeadTune, 3), (FedVPT, 2)])
def test_everybody_finetunes_before_the_second_reading(method: type, epochs: int) -> None:
    federation, state = after(method, [[0, 1]], head="global", finetune_epochs=epochs)
    theta = adapt(federation, state, [0, 1, 2, 3], epochs)
    expected = records_of(score_clients(federation, state, theta, [0, 1, 2, 3], "test"))
    records = evaluate(federation, state)
    assert records[4:] == [record._replace(policy="global_then_ft") for record in expected]
    assert not torch.equal(theta["head.weight"][0], state.server["head.weight"])


@pytest.mark.parametrize("name", registry().names())
def test_two_readings_of_one_training_equal_two_trainings(name: str) -> None:
    """Fine-tuning for the second reading changes nothing that follows, bit for bit."""
    head = "none" if registry().get(name).paper_policy == "none" else "global"
    records: dict[int, list[Record]] = {}
    for epochs in (0, 2):
        federation = toy_federation(registry().get(name), head=head, finetune_epochs=epochs)
        state = federation.start()
        records[epochs] = []
        for _ in range(2):
            federation.step(state)
            records[epochs] += evaluate(federation, state)
        records[epochs] += evaluate_unseen(federation, state, [3])
    read_once = [record for record in records[2] if record.policy == head]
    assert read_once == records[0]
    assert len(records[2]) == 2 * len(records[0])


def test_features_computed_once_give_the_head_of_recomputed_features() -> None:
    heads = []
    for method in (FedVPT, type("Recomputed", (FedVPT,), {"fixed_inputs": False})):
        federation, state = after(method, [[0, 1]], head="global")
        heads.append(adapt(federation, state, [0, 1, 2, 3], epochs=3)["head.weight"])
    torch.testing.assert_close(*heads, atol=1e-6, rtol=1e-5)


# -- one rule of adaptation for all methods ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "policy"),
    [(name, policy) for name in registry().names() for policy in applicable(registry().get(name).paper_policy)],
)
def test_never_sampled_clients_and_unseen_clients_train_their_heads_as_the_policy_says(
    name: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is private from its first draw, a copy of what is shared, or nothing. No head: both readings are taken."""
    epochs = {"local": {2}, "global": set(), "global_then_ft": {3}, "none": {2}, "none_then_ft": {2, 3}}[policy]
    federation = toy_federation(registry().get(name), epochs=2, participation=1.0, **policy_protocol(policy, 3))
    state = federation.start()
    trained: list[int] = []
    monkeypatch.setattr(hooks, "adaptation", _watched(hooks.adaptation, trained))
    evaluate(federation, state)
    evaluate_unseen(federation, state, [2, 3])
    assert {count for count in trained if count} == epochs
    last_reading = [record.policy for record in evaluate_unseen(federation, state, [2, 3])][-1]
    assert last_reading == policy


def _watched(adaptation: Callable[[Method, int], Stage], seen: list[int]) -> Callable[[Method, int], Stage]:
    def watched(method: Method, epochs: int) -> Stage:
        seen.append(epochs)
        return adaptation(method, epochs)

    return watched


def test_adaptation_is_the_same_beside_others() -> None:
    federation, state = after(FedVPT, [[0, 1]])
    together = adapt(federation, state, [2, 3], 2)
    alone = adapt(federation, state, [3], 2)
    torch.testing.assert_close(together["head.weight"][1], alone["head.weight"][0], atol=1e-6, rtol=1e-6)


def test_post_local_evaluates_what_the_client_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    federation, state = after(HeadTune, [[0, 1]], eval_point="post_local")
    given: list[Tensor] = []

    def predict(theta: State, batch: Batch) -> Tensor:
        given.append(theta["head.weight"])
        return torch.zeros(*batch.shape, 4)

    monkeypatch.setattr(federation.method, "predict", predict)
    evaluate(federation, state)
    own, others = given[0][:2], given[0][2:]
    assert torch.equal(own, torch.stack([state.local[k]["head.weight"] for k in (0, 1)]))
    assert torch.equal(others, state.server["head.weight"].expand(2, -1, -1))
    assert not torch.equal(own[0], own[1])


def test_post_local_adaptation_starts_from_what_the_client_trained() -> None:
    federation, state = after(HeadTune, [[0, 1]], eval_point="post_local")
    theta = adapt(federation, state, [0, 1], epochs=0)
    assert torch.equal(theta["head.weight"][0], state.local[0]["head.weight"])


# -- no side effects --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedvpt", {}),
        ("head-tune", {"finetune_epochs": 2}),
        ("fedvpt", {"head": "global", "finetune_epochs": 1}),
        *[(name, {"eval_point": "post_local"}) for name in registry().names()],
    ],
)
def test_evaluating_or_not_ends_in_the_same_bits(name: str, options: dict[str, Any]) -> None:
    ends = []
    for evaluating in (True, False):
        federation = toy_federation(registry().get(name), **options)
        state, stream = federation.start(), torch.get_rng_state()
        for _ in range(2):
            federation.step(state)
            if evaluating:
                evaluate(federation, state)
        assert torch.equal(torch.get_rng_state(), stream)
        ends.append(state)
    assert equal(*ends)


def test_evaluating_twice_gives_the_same_records() -> None:
    federation, state = after(FedVPT, [[0, 1]])
    assert evaluate(federation, state) == evaluate(federation, state)


class TwoDraws(Stubborn, SeveralDraws):
    """Its own prediction, and one of two draws that always says class 0."""

    def predictions(self, theta: State, batch: Batch) -> dict[int, Tensor]:
        own = self.predict(theta, batch)
        return {0: own, 2: own.flip(-1)}


def test_the_sweep_counts_every_prediction_in_reported_rounds_only() -> None:
    federation, state = after(
        TwoDraws, [[0, 1]], rounds=2, last=1, eval_every=1, sweep=True, partition=by_class(TEST, TEST)
    )
    assert {record.samples for record in evaluate(federation, state)} == {0}
    federation.step(state, [0, 1])
    records = evaluate(federation, state)
    assert [(r.samples, r.correct) for r in records] == [
        (0, 3),
        (0, 1),
        (0, 0),
        (0, 11),
        (2, 1),
        (2, 0),
        (2, 0),
        (2, 0),
    ]


def test_without_the_sweep_only_the_own_prediction_counts() -> None:
    federation, state = after(TwoDraws, [[0, 1]], rounds=1, last=1)
    assert {record.samples for record in evaluate(federation, state)} == {0}


class Rememberer(Stubborn, Constants):
    """Predicts each client's most frequent training class, which it looks up once per evaluation."""

    asked = 0

    def begin_evaluation(self, theta: State, batches: Iterable[Batch]) -> State:  # noqa: ARG002
        type(self).asked += 1
        votes = sum(torch.nn.functional.one_hot(batch.labels, 4) * batch.mask[..., None] for batch in batches)
        return {"votes": torch.as_tensor(votes).sum(1).double()}

    def predict(self, theta: State, batch: Batch) -> Tensor:  # noqa: ARG002
        return batch.start["votes"][:, None].expand(*batch.shape, 4)


def test_constants_of_an_evaluation_come_from_the_training_data_once() -> None:
    partition = by_class(({0: 2, 3: 5}, {2: 6, 3: 5}, {1: 1}, {3: 1}), TEST)
    federation, state = after(Rememberer, [], partition=partition, batch_size=2)
    assert counted(evaluate(federation, state)) == [(0, 3, 4), (1, 4, 5), (2, 2, 2), (3, 11, 11)]
    assert Rememberer.asked == 1
