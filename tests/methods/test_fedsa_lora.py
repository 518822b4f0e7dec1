from dataclasses import replace

import pytest
import torch
from support.payloads import floats_sent
from support.toy_start import ALL, toy_start
from torch import Tensor

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.rounds import FederationState
from fedprompt.methods import Batch, State
from fedprompt.methods.fedsa_lora import FedSALora


def moved(theta: State) -> State:
    """Both factors away from their first values."""
    rng = torch.Generator().manual_seed(1)
    return {**theta, "up": 0.1 * torch.randn(theta["up"].shape, generator=rng)}


def gradients(method: FedSALora, theta: State, batch: Batch) -> State:
    leaves = {name: theta[name].clone().requires_grad_() for name in ("down", "up")}
    loss = method.loss({**theta, **leaves}, replace(batch, start=theta)).sum()
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def test_before_training_the_tower_is_the_frozen_one() -> None:
    _, method, theta, batch = toy_start(FedSALora)
    frozen = batch.pad(method.backbone.cls(batch.images))
    torch.testing.assert_close(method.features(theta, batch), frozen, atol=1e-5, rtol=1e-5)


def test_at_the_first_step_only_the_second_factor_has_a_gradient() -> None:
    _, method, theta, batch = toy_start(FedSALora)
    grads = gradients(method, theta, batch)
    assert not grads["down"].any()
    assert grads["up"].flatten(2).any(-1).all()  # of every client and block


def test_features_are_those_of_a_tower_with_updated_weights() -> None:
    _, method, theta, batch = toy_start(FedSALora, alpha=4.0, rank=2)
    theta = moved(theta)
    features = method.features(theta, batch)
    for client in ALL:
        fresh = toy_federation(FedSALora).method.backbone
        for index, block in enumerate(fresh.vit.blocks):
            before = block.attn.qkv.weight.clone()
            for part, start in ((0, 0), (1, 64)):  # rows of queries, and of values behind those of keys
                update = 2 * theta["up"][client, index, part] @ theta["down"][client, index, part]
                assert torch.linalg.matrix_rank(update) == 2
                block.attn.qkv.weight.data[start : start + 32] += update
            assert torch.equal(block.attn.qkv.weight[32:64], before[32:64])  # keys stay
        expected = fresh.cls(batch.images)[[sum(batch.sizes[:client]) + i for i in range(batch.sizes[client])]]
        actual = features[client][: batch.sizes[client]]
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("share", "keys", "floats"),
    [("A", {"down"}, 1536), ("AB", {"down", "up"}, 3072), ("B", {"up"}, 1536), ("none", set(), 0)],
)
def test_only_the_shared_factors_travel(share: str, keys: set[str], floats: int) -> None:
    federation, method, theta, _ = toy_start(FedSALora, share=share)
    received = hooks.download(method, federation.start().server, ALL)
    assert set(received) == keys == set(method.upload(theta, received))
    assert floats_sent(method) == (floats, floats) == (2 * 3 * 8 * 32 * len(keys),) * 2


def test_with_a_fixed_first_factor_it_never_moves() -> None:
    federation = toy_federation(FedSALora, {"share": "B", "lr": 0.5}, participation=1.0)
    state = federation.start()
    first = federation.personal(state, 0)["down"].clone()
    federation.step(state)
    assert all(torch.equal(state.personal[client]["down"], first) for client in ALL)
    assert state.server["up"].any()


def product(state: State) -> Tensor:
    return state["up"] @ state["down"]


def test_averaging_both_factors_is_not_averaging_the_updates() -> None:
    """Unless clients agree on one factor: the flaw of FedAvg on LoRA that sharing one factor avoids."""
    method = toy_start(FedSALora, share="AB")[1]
    rng = torch.Generator().manual_seed(0)
    down, up = torch.randn(2, 3, 2, 8, 32, generator=rng), torch.randn(2, 3, 2, 32, 8, generator=rng)
    half = torch.tensor([0.5, 0.5])
    same_up = up[:1].expand_as(up)
    for ups, agree in ((up, False), (same_up, True)):
        mean = method.aggregate({}, {"down": down, "up": ups}, half, [0, 1])
        mean_of_products = (ups @ down).mean(0)
        assert torch.allclose(product(mean), mean_of_products, atol=1e-4) is agree


def test_unseen_clients_train_what_is_private() -> None:
    method = toy_start(FedSALora)[1]
    assert set(hooks.unseen_stages(method, 5)[0].rates) == {"up", "head.weight", "head.bias"}
    with_global_head = toy_federation(FedSALora, head="global").method
    assert set(hooks.unseen_stages(with_global_head, 5)[0].rates) == {"up"}


def test_clients_keep_their_second_factor() -> None:
    federation = toy_federation(FedSALora, {"lr": 0.1})
    state: FederationState = federation.start()
    federation.step(state, (0, 1))
    assert not torch.equal(state.personal[0]["up"], state.personal[1]["up"])
    assert set(state.server) == {"down"}
