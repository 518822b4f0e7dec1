import torch
from support.payloads import floats_sent
from support.toy_start import ALL, toy_start
from torch.nn import functional as F  # noqa: N812

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.methods.fed_adapter import WEIGHTS, FedAdapter


def test_before_training_the_tower_is_the_frozen_one() -> None:
    _, method, theta, batch = toy_start(FedAdapter)
    frozen = batch.pad(method.backbone.cls(batch.images))
    torch.testing.assert_close(method.features(theta, batch), frozen, atol=1e-5, rtol=1e-5)


def test_each_client_has_its_own_adapter_beside_every_block() -> None:
    _, method, theta, batch = toy_start(FedAdapter, scale=0.5)
    rng = torch.Generator().manual_seed(1)
    theta |= {name: 0.2 * torch.randn(theta[name].shape, generator=rng) for name in WEIGHTS}
    vit, (down, shift, up, bias) = method.backbone.vit, (theta[name][1] for name in WEIGHTS)
    tokens = method.backbone.embed(batch.images)[8:13]  # the five images of client 1
    for index, block in enumerate(vit.blocks):
        inner = F.gelu(block.norm1(tokens) @ down[index].T + shift[index])
        tokens = block(tokens) + 0.5 * (inner @ up[index].T + bias[index])
    torch.testing.assert_close(method.features(theta, batch)[1, :5], vit.norm(tokens)[:, 0], atol=1e-5, rtol=1e-5)


def test_equal_uploads_are_a_fixed_point() -> None:
    federation, method, _, _ = toy_start(FedAdapter)
    server = federation.start().server
    stacked = {name: tensor.expand(3, *tensor.shape) for name, tensor in server.items()}
    after = method.aggregate(server, stacked, torch.tensor([0.2, 0.3, 0.5]), [0, 1, 2])
    assert all(torch.equal(server[name], after[name]) for name in server)


def test_payload_is_the_adapters_and_never_a_local_head() -> None:
    federation, method, _, _ = toy_start(FedAdapter, bottleneck=5)
    assert floats_sent(method) == (3 * (2 * 32 * 5 + 5 + 32),) * 2
    assert set(hooks.download(method, federation.start().server, ALL)) == set(WEIGHTS)
    shared_head = toy_federation(FedAdapter, {"bottleneck": 5}, head="global").method
    assert floats_sent(shared_head)[0] - floats_sent(method)[0] == 4 * 32 + 4


def test_without_sharing_it_is_local_training() -> None:
    """One client that trains alone for two rounds ends where it ends among others."""
    ends = []
    for cohort in (ALL, (1,)):
        federation = toy_federation(FedAdapter, {"share": "none", "lr": 0.1})
        state = federation.start()
        for _ in range(2):
            federation.step(state, cohort)
        assert not state.server
        ends.append(state.personal[1])
    for name in WEIGHTS:
        torch.testing.assert_close(ends[0][name], ends[1][name], atol=1e-6, rtol=1e-5)
