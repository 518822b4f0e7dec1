from typing import Any

import pytest
import torch
from support.payloads import floats_sent
from support.toy_start import ALL, toy_start
from torch import Tensor

from fedprompt.harness.conformance import PROPERTIES, check_property
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.methods import State
from fedprompt.methods._subspaces import spectral_groups, subspace_distances
from fedprompt.methods.fed_lora import FlexLora
from fedprompt.methods.hilora import CLUSTER, LEAF, ROOT, HiLora

SHORT = {"root_rounds": 2, "cluster_rounds": 2, "lr": 0.05}
WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)


def after(rounds: int, **params: Any) -> tuple[Federation, HiLora, FederationState]:
    federation = toy_federation(HiLora, {**SHORT, **params}, participation=1.0)
    assert isinstance(federation.method, HiLora)
    state = federation.start()
    for _ in range(rounds):
        federation.step(state)
    return federation, federation.method, state


def tiers(state: State, prefix: str) -> State:
    return {name: tensor for name, tensor in state.items() if name.startswith(prefix)}


def same(first: State, second: State) -> bool:
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -- subspaces --------------------------------------------------------------------------------------------------------


def test_equal_subspaces_are_at_distance_zero_whatever_the_basis() -> None:
    factor, basis = draw(1, 4, 2, 12, 3), draw(1, 4, 2, 3, 3, seed=1)
    distances = subspace_distances(torch.cat([factor, factor @ basis, draw(1, 4, 2, 12, 3, seed=2)]))
    torch.testing.assert_close(distances[0, 1], torch.tensor(0.0).double(), atol=1e-9, rtol=0)
    torch.testing.assert_close(distances[0, 2], distances[1, 2])
    assert torch.equal(distances, distances.T)
    assert 0.1 < float(distances[0, 2]) < 1


def test_orthogonal_subspaces_are_at_distance_one() -> None:
    identity = torch.eye(6)
    distances = subspace_distances(torch.stack([identity[:, :2], identity[:, 3:5]])[:, None])
    torch.testing.assert_close(distances[0, 1], torch.tensor(1.0).double())


def test_planted_groups_are_found() -> None:
    planted = torch.tensor([0, 1, 1, 0, 2, 2, 0, 1, 2])
    factors = draw(3, 2, 16, 2)[planted] + 0.1 * draw(9, 2, 16, 2, seed=1)
    groups = spectral_groups(subspace_distances(factors), 2, 8)
    assert len(groups.unique()) == 3
    assert torch.equal(groups[:, None] == groups, planted[:, None] == planted)


@pytest.mark.parametrize(("clients", "most"), [(2, 10), (1, 10), (5, 1)])
def test_where_there_is_nothing_to_divide_there_is_one_group(clients: int, most: int) -> None:
    assert not spectral_groups(subspace_distances(draw(clients, 1, 8, 2)), 1, most).any()


def test_clients_that_never_took_part_join_the_largest_group() -> None:
    method = toy_start(HiLora)[1]
    factors = draw(2, 3, 2, 32, 8)[[0, 0, 0, 1, 1]] + 0.05 * draw(5, 3, 2, 32, 8, seed=1)
    groups = method.clustered(torch.cat([torch.zeros(1, 3, 2, 32, 8), factors]))
    assert groups[0] == groups[1] == groups[3]
    assert groups[4] == groups[5] != groups[1]


# -- tiers ------------------------------------------------------------------------------------------------------------


def test_the_root_is_aggregated_as_in_flexlora() -> None:
    method, flex = toy_start(HiLora)[1], toy_start(FlexLora)[1]
    uploads = {"down": draw(3, 3, 2, 8, 32), "up": draw(3, 3, 2, 32, 8, seed=1)}
    server = method.init_server(torch.Generator())
    root = method.aggregate(server, uploads, WEIGHTS, [0, 1, 2])
    expected = flex.aggregate({}, uploads, WEIGHTS, [0, 1, 2])
    torch.testing.assert_close(root["root.up"] @ root["root.down"], expected["up"] @ expected["down"])
    columns = root["root.up"].mT @ root["root.up"]
    torch.testing.assert_close(columns, torch.eye(8).expand_as(columns), atol=1e-5, rtol=0)


def test_a_cluster_is_aggregated_within_its_group() -> None:
    method = toy_start(HiLora, root_rounds=1)[1]
    uploads = {"down": draw(3, 3, 2, 8, 32), "up": draw(3, 3, 2, 32, 8, seed=1)}
    server = {**method.init_server(torch.Generator()), "round": torch.tensor(1), "groups": torch.tensor([0, 1, 1, 0])}
    clusters = method.aggregate(server, uploads, WEIGHTS, [0, 1, 2])
    product = clusters["cluster.up"] @ clusters["cluster.down"]
    torch.testing.assert_close(product[0], uploads["up"][0] @ uploads["down"][0], atol=1e-4, rtol=1e-4)
    mean = 0.6 * uploads["up"][1] @ uploads["down"][1] + 0.4 * uploads["up"][2] @ uploads["down"][2]
    left, sizes, right = torch.linalg.svd(mean)
    best = (left[..., :8] * sizes[..., None, :8]) @ right[..., :8, :]
    torch.testing.assert_close(product[1], best, atol=1e-4, rtol=1e-4)
    assert not product[2:].any()


def test_tiers_train_one_after_another_and_are_frozen_afterwards() -> None:
    moving = []
    federation, method, state = after(0)
    for _ in range(6):
        before, leaves = dict(state.server), [federation.personal(state, client) for client in ALL]
        stage = int(method.stage_of(before))
        federation.step(state)
        moved = (
            not same(tiers(before, "root."), state.server),
            not same(tiers(before, "cluster."), state.server),
            not all(same(tiers(leaf, "leaf."), state.personal[client]) for client, leaf in enumerate(leaves)),
        )
        moving.append((stage, moved))
    expected = [(ROOT, (True, False, False))] * 2 + [(CLUSTER, (False, True, False))] * 2
    assert moving == expected + [(LEAF, (False, False, True))] * 2


def test_a_stage_that_begins_starts_at_the_function_of_the_last_one() -> None:
    federation, method, state = after(2)
    _, theta = federation.theta(state, ALL)
    batch = federation.data.batch(ALL, "train", [torch.arange(3)] * 4, [])
    assert theta["stage"].tolist() == [CLUSTER] * 4
    assert not theta["up"].any()
    root = {name: torch.stack([state.server[f"root.{name}"]] * 4) for name in ("down", "up")}
    expected = toy_start(FlexLora)[1].features(root, batch)
    torch.testing.assert_close(method.features(theta, batch), expected, atol=1e-5, rtol=1e-5)


def test_the_three_updates_add_up() -> None:
    federation, method, state = after(6)
    _, theta = federation.theta(state, (2,))
    features = method.features(theta, federation.data.batch((2,), "train", [torch.arange(3)], []))
    vit = toy_federation(FlexLora).method.backbone
    group = state.server["groups"][2]
    factors = [
        (state.server["root.down"], state.server["root.up"]),
        (state.server["cluster.down"][group], state.server["cluster.up"][group]),
        (state.personal[2]["leaf.down"], state.personal[2]["leaf.up"]),
    ]
    assert all((up @ down).any() for down, up in factors)
    for index, block in enumerate(vit.vit.blocks):
        for part, start in ((0, 0), (1, 64)):
            update = sum(2 * up[index, part] @ down[index, part] for down, up in factors)  # alpha / r = 2
            block.attn.qkv.weight.data[start : start + 32] += update
    expected = vit.cls(federation.data.batch((2,), "train", [torch.arange(3)], []).images)
    torch.testing.assert_close(features[0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["stacking", "gradient matches the loss", "isolation", "resume", "identical uploads"])
@pytest.mark.parametrize("cluster_rounds", [0, 9], ids=["leaves", "clusters"])
@pytest.mark.slow
def test_later_stages_conform(name: str, cluster_rounds: int) -> None:
    property_ = next(property_ for property_ in PROPERTIES if property_.name == name)
    assert check_property(property_, HiLora, {"root_rounds": 1, "cluster_rounds": cluster_rounds}).reason == ""


def test_nothing_of_a_leaf_is_uploaded() -> None:
    federation, method, state = after(4)
    uploads: list[State] = []
    original = method.upload

    def upload(theta: State, received: State) -> State:
        uploads.append(original(theta, received))
        return uploads[-1]

    method.upload = upload  # type: ignore[method-assign]
    federation.step(state)
    assert all(not sent["down"].any() and not sent["up"].any() for sent in uploads)
    assert uploads


@pytest.mark.parametrize(("orthogonal", "zero"), [(True, True), (False, False)])
def test_the_penalty_is_zero_where_columns_are_orthogonal(orthogonal: bool, zero: bool) -> None:
    _, method, theta, batch = toy_start(HiLora, rank=2)
    eye = torch.eye(32)
    start = 10 if orthogonal else 1
    frozen = torch.stack([eye[:, :2], eye[:, 4:6]])[None, :, None, None].expand(4, 2, 3, 2, 32, 2)
    up = eye[:, start : start + 2].expand(4, 3, 2, 32, 2)
    theta = {**theta, "frozen.up": frozen, "up": up}
    plain = toy_start(HiLora, rank=2, cluster_penalty=0.0, leaf_penalty=0.0)[1]
    penalty = method.loss(theta, batch) - plain.loss(theta, batch)
    expected = torch.full((4,), 0.0 if zero else 0.1 * 3 * 2)  # one common column, six matrices
    torch.testing.assert_close(penalty, expected, atol=1e-5, rtol=0)


def test_what_travels() -> None:
    assert floats_sent(toy_start(HiLora)[1]) == (3072, 3072) == (4 * 3 * 8 * 32,) * 2


def test_unseen_clients_get_root_and_cluster_and_train_a_leaf() -> None:
    federation, method, state = after(4)
    _, theta = federation.theta(state, (0,), unseen=True)
    assert theta["stage"].tolist() == [LEAF]
    assert torch.equal(theta["frozen.up"][0, 0], state.server["root.up"])
    assert set(hooks.unseen_stages(method, 5)[0].rates) == {"up", "head.weight", "head.bias"}
