from typing import Any

import pytest
import torch
from support.payloads import floats_sent
from torch import nn

from fedprompt.harness.conformance.lab import ALL, first_rows
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.methods import State
from fedprompt.methods._attention import affine
from fedprompt.methods.fedsept import FedSEPT, overlap
from fedprompt.methods.promptfl import PromptFL


def build(**params: Any) -> tuple[FedSEPT, State, Any]:
    federation = toy_federation(FedSEPT, params)
    assert isinstance(federation.method, FedSEPT)
    _, theta = federation.theta(federation.start(), ALL)
    rng = torch.Generator().manual_seed(1)
    theta["gate.weight"] = torch.randn(theta["gate.weight"].shape, generator=rng)  # so that experts count differently
    theta["residual"] = 0.02 * torch.randn(theta["residual"].shape, generator=rng)
    return federation.method, theta, first_rows(federation, ALL, [3] * 4, "train", theta)


def test_a_single_expert_is_promptfl_with_its_context() -> None:
    method, theta, batch = build(experts=1)
    context = theta["factors"][:, 0] @ method.public + theta["residual"]
    expected = toy_federation(PromptFL).method.predict({"context": context}, batch)
    torch.testing.assert_close(method.predict(theta, batch), expected)


def test_the_number_of_an_expert_does_not_matter() -> None:
    method, theta, batch = build()
    swapped = {name: theta[name][:, [0, 2, 1, 3]] for name in ("factors", "gate.weight", "gate.bias")}
    torch.testing.assert_close(method.predict({**theta, **swapped}, batch), method.predict(theta, batch))
    alone = {"factors": swapped["factors"]}
    assert not torch.allclose(method.predict({**theta, **alone}, batch), method.predict(theta, batch))


def test_the_overlap_is_zero_for_orthogonal_and_one_for_equal_factors() -> None:
    orthogonal = torch.eye(12)[:4].view(1, 4, 3, 4)
    equal = orthogonal[:, :1] * torch.tensor([1.0, -1.0, 3.0]).view(1, 3, 1, 1)  # up to a factor
    assert overlap(orthogonal).tolist() == [0.0]
    assert overlap(equal).tolist() == [pytest.approx(1)]
    assert overlap(torch.randn(2, 1, 3, 4, generator=torch.Generator().manual_seed(0))).tolist() == [0.0, 0.0]


def test_the_loss_adds_the_overlap_with_its_weight() -> None:
    (method, theta, batch), (without, _, _) = build(dropout=0.0), build(dropout=0.0, diversity=0.0)
    added = method.loss(theta, batch) - without.loss(theta, batch)
    torch.testing.assert_close(added, 10 * overlap(theta["factors"]))


def test_the_router_is_attention_over_one_key_whatever_the_query() -> None:
    """The published router has a query and maps of queries and keys; none of them matters, and none has a gradient."""
    method, theta, batch = build()
    images = method.image_features(batch)
    width = images.shape[-1]
    attention = nn.MultiheadAttention(width, 4, batch_first=True)
    query = torch.randn(3, 1, width, requires_grad=True)
    with torch.no_grad():
        attention.in_proj_weight[2 * width :] = theta["value.weight"][0]
        attention.in_proj_bias[2 * width :] = theta["value.bias"][0]
        attention.out_proj.weight.copy_(theta["out.weight"][0])
        attention.out_proj.bias.copy_(theta["out.bias"][0])
    answer, _ = attention(query, images[0][:, None], images[0][:, None])
    torch.testing.assert_close(answer[:, 0], affine(theta, "out", affine(theta, "value", images))[0])
    moved, of_maps = torch.autograd.grad(answer.square().sum(), (query, attention.in_proj_weight))
    assert float(moved.abs().max()) < 1e-6
    assert float(of_maps[: 2 * width].abs().max()) < 1e-6


def test_an_affine_router_is_an_option() -> None:
    method, theta, batch = build(router="affine")
    assert "value.weight" not in theta
    shares = method.shares(theta, method.image_features(batch))
    torch.testing.assert_close(shares.sum(-1), torch.ones(4, 3))


def test_what_the_router_reads_is_dropped_in_training_only() -> None:
    (method, theta, batch), (plain, _, _) = build(dropout=0.5), build(dropout=0.0)
    assert not torch.equal(method.loss(theta, batch), plain.loss(theta, batch))
    assert torch.equal(method.predict(theta, batch), plain.predict(theta, batch))


def test_the_public_matrix_is_the_same_everywhere_and_never_travels() -> None:
    one, other = (toy_federation(FedSEPT, seed=seed) for seed in (0, 1))
    assert isinstance(one.method, FedSEPT)
    assert isinstance(other.method, FedSEPT)
    before = one.method.public.clone()
    state = one.start()
    one.step(state)
    assert torch.equal(one.method.public, before)
    assert torch.equal(other.method.public, before)
    assert list(state.server) == ["factors"]


def test_the_residual_and_the_router_stay() -> None:
    federation = toy_federation(FedSEPT)
    received, theta = federation.theta(federation.start(), ALL)
    assert set(federation.method.rates()) == set(theta)
    assert list(federation.method.upload(theta, received)) == ["factors"]
    assert floats_sent(federation.method) == (4 * 16 * 16, 4 * 16 * 16)
