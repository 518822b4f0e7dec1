import pytest
import torch
from support.payloads import floats_sent
from support.toy_start import ALL, toy_start
from torch import Tensor, nn

from fedprompt.harness.conformance.toy import toy_backbone, toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.methods import State
from fedprompt.methods.fed_kv_adapter import FedKVAdapter


def moved(theta: State) -> State:
    """Side networks away from their first values."""
    rng = torch.Generator().manual_seed(1)
    draws = {
        name: 0.2 * torch.randn(theta[name].shape, generator=rng) for name in ("down.bias", "up.weight", "up.bias")
    }
    return {**theta, **draws}


def test_before_training_the_tower_is_the_frozen_one() -> None:
    _, method, theta, batch = toy_start(FedKVAdapter)
    frozen = batch.pad(method.backbone.cls(batch.images))
    torch.testing.assert_close(method.features(theta, batch), frozen, atol=1e-5, rtol=1e-5)


def test_with_beta_zero_it_always_is() -> None:
    _, method, theta, batch = toy_start(FedKVAdapter, beta=0.0)
    frozen = batch.pad(method.backbone.cls(batch.images))
    torch.testing.assert_close(method.features(moved(theta), batch), frozen, atol=1e-5, rtol=1e-5)


def test_keys_and_values_are_shifted_and_queries_stay() -> None:
    _, method, theta, batch = toy_start(FedKVAdapter, bottleneck=3)
    theta = moved(theta)
    features, client, vit = method.features(theta, batch), 2, toy_backbone()
    for index, block in enumerate(vit.vit.blocks):
        down, down_bias, up, up_bias = (
            theta[name][client, index] for name in ("down.weight", "down.bias", "up.weight", "up.bias")
        )

        def shift(
            _: nn.Module,
            inputs: tuple[Tensor],
            output: Tensor,
            weights: tuple[Tensor, ...] = (down, down_bias, up, up_bias),
        ) -> Tensor:
            down, down_bias, up, up_bias = weights
            change = 1.5 * ((inputs[0] @ down.T + down_bias).tanh() @ up.T + up_bias)
            return output + torch.cat([torch.zeros_like(change[..., :32]), change], dim=-1)

        block.attn.qkv.register_forward_hook(shift)
    tokens = vit.embed(batch.images[13:21])  # behind those of clients 0 and 1
    for block in vit.vit.blocks:
        tokens = block(tokens)
    torch.testing.assert_close(features[client], vit.vit.norm(tokens)[:, 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("share", "keys"),
    [
        ("none", set()),
        ("down", {"down.weight", "down.bias"}),
        ("all", {"down.weight", "down.bias", "up.weight", "up.bias"}),
    ],
)
def test_only_what_is_shared_travels(share: str, keys: set[str]) -> None:
    federation, method, theta, _ = toy_start(FedKVAdapter, share=share)
    received = hooks.download(method, federation.start().server, ALL)
    assert set(received) == keys == set(method.upload(theta, received))
    sizes = {"down.weight": 16 * 32, "down.bias": 16, "up.weight": 64 * 16, "up.bias": 64}
    assert floats_sent(method) == (3 * sum(sizes[key] for key in keys),) * 2


def test_clients_keep_their_second_map() -> None:
    federation = toy_federation(FedKVAdapter, {"lr": 0.1})
    state = federation.start()
    federation.step(state, (0, 1))
    assert not torch.equal(state.personal[0]["up.weight"], state.personal[1]["up.weight"])
    assert set(state.server) == {"down.weight", "down.bias"}


def test_unseen_clients_train_what_is_private() -> None:
    method = toy_start(FedKVAdapter)[1]
    assert set(hooks.unseen_stages(method, 5)[0].rates) == {"up.weight", "up.bias", "head.weight", "head.bias"}
    with_global_head = toy_federation(FedKVAdapter, head="global").method
    assert set(hooks.unseen_stages(with_global_head, 5)[0].rates) == {"up.weight", "up.bias"}
