import copy
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.payloads import floats_sent
from torch import nn

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.core.fields import build
from fedprompt.core.rng import torch_rng
from fedprompt.datasets import Partition
from fedprompt.harness.conformance.toy import toy_backbone_for, toy_dataset, toy_federation, toy_partition
from fedprompt.harness.federation.clients import ClientData
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.rounds import Federation, FederationState, auto_stack
from fedprompt.methods import Batch, Diagnostics, Downloads, Method, State, Statistics, Task, registry
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.fedvpt_d import FedVPTDeep
from fedprompt.methods.head_tune import HeadTune


def split(*train: Sequence[int]) -> Partition:
    """Clients with these training rows of the toy; one test row each."""
    nothing = tuple(np.empty(0, np.int64) for _ in train)
    return Partition(tuple(np.array(rows) for rows in train), tuple(np.array([0]) for _ in train), nothing)


@cache
def toy(method: type[Method]) -> Federation:
    return toy_federation(method)


def crowd(clients: int, participation: float, seed: int = 0, method: type[Method] = HeadTune) -> Federation:
    """So many clients, for questions that do not look at their data."""
    few = toy(method)
    return Federation(few.method, few.data, Protocol(participation=participation), seed, range(clients))


def same(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# -- participation ----------------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 5), st.integers(1, 100))
def test_a_cohort_is_sorted_distinct_and_of_the_right_size(
    clients: int, participation: float, seed: int, round_: int
) -> None:
    federation = crowd(clients, participation, seed)
    cohort = federation.cohort(round_)
    assert list(cohort) == sorted(set(cohort))
    assert set(cohort) <= set(range(clients))
    assert len(cohort) == max(1, round(participation * clients))
    assert cohort == crowd(clients, participation, seed).cohort(round_)


@pytest.mark.parametrize(
    ("clients", "participation", "size"),
    [(100, 0.05, 5), (50, 0.1, 5), (6, 1.0, 6), (100, 0.0001, 1), (3, 0.0, 1)],
)
def test_cohort_sizes(clients: int, participation: float, size: int) -> None:
    assert len(crowd(clients, participation).cohort(1)) == size


def test_every_method_sees_the_same_cohorts() -> None:
    rounds = range(1, 20)
    methods = [crowd(20, 0.2, method=method) for method in (HeadTune, FedVPT, FedVPTDeep)]
    first, *others = [[federation.cohort(r) for r in rounds] for federation in methods]
    assert others == [first, first]


def test_cohorts_change_with_round_and_seed() -> None:
    cohorts = {crowd(20, 0.2, seed).cohort(round_) for seed in range(3) for round_ in range(1, 11)}
    assert len(cohorts) == 30


def test_everybody_gets_a_turn() -> None:
    federation = crowd(20, 0.2)
    assert {client for round_ in range(1, 61) for client in federation.cohort(round_)} == set(range(20))


def test_only_members_take_part() -> None:
    whole = toy(HeadTune)
    federation = Federation(whole.method, whole.data, Protocol(participation=0.5), seed=0, members=[1, 3])
    assert {client for round_ in range(1, 21) for client in federation.cohort(round_)} == {1, 3}


# -- aggregation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "weights"), [("samples", [13 / 47, 8 / 47, 21 / 47, 5 / 47]), ("uniform", [0.25] * 4)]
)
def test_weights(rule: str, weights: list[float]) -> None:
    federation = toy_federation(HeadTune, agg_weights=rule)
    assert federation.weights([0, 1, 2, 3]).tolist() == pytest.approx(weights, abs=1e-15)


def test_the_server_takes_the_weighted_mean_of_what_clients_trained() -> None:
    federation = toy_federation(HeadTune, epochs=1)
    state = federation.start()
    alone = []
    for client in (0, 2):
        single = copy.deepcopy(state)
        federation.step(single, [client])
        alone.append(single.server["head.weight"])
    federation.step(state, [0, 2])
    torch.testing.assert_close(state.server["head.weight"], (13 * alone[0] + 21 * alone[1]) / 34)


def test_order_of_the_cohort_does_not_matter() -> None:
    states = []
    for cohort in ([0, 1, 3], [3, 0, 1]):
        federation = toy_federation(HeadTune, stack=1)
        state = federation.start()
        federation.step(state, cohort)
        states.append(state.server)
    assert same(*states)


def test_one_client_is_centralised_training() -> None:
    rows = list(range(1, 40))
    federation = toy_federation(HeadTune, {"lr": 0.3}, partition=split(rows), participation=1.0)
    state, protocol, data = federation.start(), federation.protocol, federation.data
    layer = nn.Linear(32, 4)
    layer.load_state_dict({name.removeprefix("head."): value for name, value in state.server.items()})
    for round_ in (1, 2, 3):
        sgd = torch.optim.SGD(
            layer.parameters(), lr=0.3, momentum=protocol.momentum, weight_decay=protocol.weight_decay
        )
        order = torch_rng(0, "batches", round_, 0)
        for _ in range(protocol.epochs):
            for batch in data.epoch([0], protocol.batch_size, [order], [order], "train"):
                assert batch.features is not None
                sgd.zero_grad()
                nn.functional.cross_entropy(layer(batch.features[0]), batch.labels[0]).backward()
                sgd.step()
        federation.step(state)
        torch.testing.assert_close(state.server["head.weight"], layer.weight.data, atol=1e-5, rtol=1e-5)


def test_clients_with_equal_data_aggregate_to_what_each_trained() -> None:
    rows = list(range(1, 20))
    pair = toy_federation(HeadTune, {"lr": 0.3}, partition=split(rows, rows), participation=1.0, batch_size=32)
    alone = toy_federation(HeadTune, {"lr": 0.3}, partition=split(rows), participation=1.0, batch_size=32)
    first, second = pair.start(), alone.start()
    pair.step(first)
    alone.step(second)
    torch.testing.assert_close(first.server, second.server, atol=1e-6, rtol=1e-6)


# -- what stays and what travels --------------------------------------------------------------------------------------


def test_personal_state_survives_rounds_without_its_client() -> None:
    federation = toy_federation(FedVPT)
    state = federation.start()
    federation.step(state, [0, 1])
    before = copy.deepcopy(state.personal)
    federation.step(state, [1, 2])
    federation.step(state, [2, 3])
    assert same(state.personal[0], before[0])
    assert not same(state.personal[1], before[1])
    assert not same(state.personal[0], state.personal[1])


def test_a_visit_begins_where_the_last_one_ended() -> None:
    federation = toy_federation(HeadTune, head="local")
    state = federation.start()
    federation.step(state, [0])
    _, theta = federation.theta(state, [0, 3])
    assert torch.equal(theta["head.weight"][0], state.personal[0]["head.weight"])
    assert torch.equal(theta["head.weight"][1], federation.personal(federation.start(), 3)["head.weight"])


def test_nothing_is_shared_between_clients_or_with_the_server() -> None:
    federation = toy_federation(FedVPT, eval_point="post_local", epochs=0)
    state = federation.start()
    federation.step(state, [0, 1])
    expected = copy.deepcopy(state)
    for name in state.personal[0]:
        state.personal[0][name].fill_(9)
    for name in state.local[0]:
        state.local[0][name].fill_(9)
    assert same(state.personal[1], expected.personal[1])
    assert same(state.local[1], expected.local[1])
    assert same(state.server, expected.server)


def test_a_failed_round_leaves_the_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = toy_federation(FedVPT)
    state = federation.start()
    federation.step(state, [0, 1])
    before = copy.deepcopy(state)

    def fail(*_: object) -> State:
        raise KeyboardInterrupt

    monkeypatch.setattr(federation.method, "aggregate", fail)
    with pytest.raises(KeyboardInterrupt):
        federation.step(state, [1, 2])
    assert state.round == 1
    assert same(state.server, before.server)
    assert state.personal.keys() == {0, 1}
    assert same(state.personal[1], before.personal[1])


def test_stack_sizes_agree() -> None:
    states: list[FederationState] = []
    for stack in (1, 3, 4):
        federation = toy_federation(FedVPTDeep, participation=1.0, stack=stack)
        state = federation.start()
        for _ in range(2):
            federation.step(state)
        states.append(state)
    for other in states[1:]:
        torch.testing.assert_close(other.server, states[0].server, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(other.personal, states[0].personal, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", registry().names())
def test_the_backbone_is_frozen(name: str) -> None:
    backbone = toy_backbone_for(registry().get(name))
    before = copy.deepcopy(backbone.state_dict())
    federation = toy_federation(registry().get(name), backbone=backbone)
    federation.step(federation.start())
    assert same(dict(backbone.state_dict()), dict(before))


# Floats of one client and round at ViT-B/16's shapes, C = 10 and 100.
PAYLOADS = [
    ("head-tune", "global", {}, 7_690, 76_900),
    ("head-tune", "local", {}, 0, 0),
    ("fedvpt", "local", {}, 7_680, 7_680),
    ("fedvpt", "global", {}, 15_370, 84_580),
    ("fedvpt-d", "local", {}, 92_160, 92_160),
    ("fedvpt-d", "local", {"depth": 6}, 46_080, 46_080),
    ("fedvpt-d", "global", {}, 99_850, 169_060),
]


@pytest.fixture(scope="module")
def vit_b() -> FrozenViT:
    with torch.device("meta"):
        vit = timm.create_model("vit_base_patch16_224", num_classes=0)
    return FrozenViT(vit, "vit_base_patch16_224", "random", (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize(("name", "head", "params", "ten", "hundred"), PAYLOADS)
def test_measured_payload(name: str, head: str, params: State, ten: int, hundred: int, vit_b: FrozenViT) -> None:
    for classes, floats in ((10, ten), (100, hundred)):
        cls = registry().get(name)
        task = Task(tuple(map(str, range(classes))), torch.ones(4, classes), head)
        method = cls(build(cls.Params, params, name), vit_b, task)
        data = ClientData(toy_dataset(), toy_partition(), cls.needs)
        federation = Federation(method, data, Protocol(epochs=0, stack=2), seed=0)
        log = federation.step(federation.start(), [0, 1, 3])
        assert (log.floats_down, log.floats_up) == (3 * floats, 3 * floats)
        assert (log.bytes_down, log.bytes_up) == (12 * floats, 12 * floats)
        assert floats_sent(method) == (floats, floats)


class Upstream(HeadTune):
    """Sends twice as much as it gets, and half of that in half precision."""

    name = "upstream"

    def upload(self, theta: State, received: State) -> State:
        return {**{n: theta[n] for n in received}, **{f"{n}.half": theta[n].half() for n in received}}

    def aggregate(self, server: State, uploads: State, weights: torch.Tensor, clients: Sequence[int]) -> State:
        return super().aggregate(server, {n: uploads[n] for n in server}, weights, clients)


def test_each_way_is_counted_for_itself() -> None:
    federation = toy_federation(Upstream)
    log = federation.step(federation.start(), [0, 1])
    head = 4 * 32 + 4
    assert (log.floats_down, log.floats_up) == (2 * head, 4 * head)
    assert (log.bytes_down, log.bytes_up) == (2 * 4 * head, 2 * 6 * head)


class Counting(HeadTune, Statistics):
    """Sends, besides its head, how many training images it has; nobody downloads that."""

    name = "counting"

    def end_visit(self, theta: State, batches: Iterable[Batch]) -> State:  # noqa: ARG002
        return {"count": sum(batch.mask.sum(1) for batch in batches)[:, None].float()}  # type: ignore[index]

    def upload(self, theta: State, received: State) -> State:
        return {**super().upload(theta, received), "count": theta["count"]}


def test_statistics_of_a_visit_can_be_sent() -> None:
    federation = toy_federation(Counting, agg_weights="uniform", eval_point="post_local")
    state = federation.start()
    federation.step(state, [0, 2])
    assert state.server["count"].item() == 17  # of 13 and 21
    assert state.personal == {0: {}, 2: {}}
    assert state.local[0].keys() == {"head.weight", "head.bias"}


def test_a_method_that_sends_nothing_still_trains() -> None:
    federation = toy_federation(HeadTune, head="local")
    state = federation.start()
    log = federation.step(state, [0, 1])
    assert (log.floats_down, log.floats_up, log.bytes_down, log.bytes_up) == (0, 0, 0, 0)
    assert state.server == {}
    assert not same(state.personal[0], federation.personal(federation.start(), 0))


def test_a_log_says_who_took_part_and_the_mean_loss() -> None:
    federation = toy_federation(HeadTune, {"head_init": "zeros", "lr": 0})
    log = federation.step(federation.start(), [3, 0])
    assert (log.round, log.cohort) == (1, (0, 3))
    assert log.loss == pytest.approx(1.3863, abs=1e-4)  # ln 4: a zero head is undecided


class Told(HeadTune, Diagnostics):
    def diagnostics(self, theta: State, batch: Batch) -> State:  # noqa: ARG002
        return {"images": batch.mask.sum(1), "noise": batch.normal(1).sum((1, 2))}


def test_what_a_method_tells_of_itself_is_averaged_over_the_cohort() -> None:
    plain, told = toy_federation(HeadTune, epochs=1), toy_federation(Told, epochs=1, stack=1)
    states = plain.start(), told.start()
    logs = plain.step(states[0], [0, 3]), told.step(states[1], [0, 3])
    assert logs[0].diagnostics == {}
    assert logs[1].diagnostics["images"] == 4  # the first of each client
    assert (
        logs[1].diagnostics["noise"] == toy_federation(Told, epochs=1).step(told.start(), [3, 0]).diagnostics["noise"]
    )
    assert logs[1].loss == pytest.approx(logs[0].loss)


def test_all_clients_start_from_one_head() -> None:
    federation = toy_federation(FedVPT)
    state = federation.start()
    assert same(federation.personal(state, 0), federation.personal(state, 3))
    assert not same(federation.personal(state, 0), toy_federation(FedVPT, seed=1).personal(state, 0))


def test_the_stack_is_bounded_by_memory(vit_b: FrozenViT) -> None:
    assert toy_federation(FedVPT).stack > 4
    task = Task(("a", "b"), torch.ones(1, 2))
    assert auto_stack(FedVPT(build(FedVPT.Params, {}, ""), vit_b, task), 64) == 1


def test_what_only_fills_up_a_stack_is_not_counted_as_sent() -> None:
    class Ragged(HeadTune, Downloads):
        """Client k needs only k rows of what the stack holds."""

        def download(self, server: State, clients: Sequence[int]) -> State:
            return {**super().download(server, clients), "rows": torch.ones(len(clients), 4, 10)}

        def sent_tensors(self, received: State, position: int) -> State:
            sent = super().sent_tensors(received, position)
            return {**sent, "rows": sent["rows"][:position]}

        def upload(self, theta: State, received: State) -> State:  # noqa: ARG002
            return {"head.weight": theta["head.weight"]}

    federation = toy_federation(Ragged, head="global")
    log = federation.step(federation.start(), (0, 1, 2, 3))
    assert log.floats_down == 4 * (4 * 32 + 4) + (0 + 1 + 2 + 3) * 10
