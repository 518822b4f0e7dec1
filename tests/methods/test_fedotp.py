from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.lab import ALL, first_rows
from fedprompt.harness.conformance.toy import toy_dataset, toy_federation, toy_partition
from fedprompt.methods.fedotp import FedOTP, transport

PATCHES = 49


def similarities(*shape: int, low: float = 0.05, high: float = 0.35) -> Tensor:
    """Cosines of patches and class texts as CLIP has them."""
    rng = torch.Generator().manual_seed(0)
    return low + (high - low) * torch.rand(*shape, generator=rng)


def linear_transport(similarity: Tensor, mass: float, eps: float, sweeps: int) -> Tensor:
    """The same sweeps on the factors themselves, in double precision."""
    kernel = torch.exp(-(1 - similarity.double()) / eps)
    rows, columns = kernel.shape[-2:]
    column = torch.ones(*kernel.shape[:-2], columns, dtype=torch.float64)
    for _ in range(sweeps):
        row = ((1 / rows) / (kernel @ column[..., None])[..., 0]).clamp(max=1)
        column = (mass / columns) / (kernel.mT @ row[..., None])[..., 0]
    return row[..., None] * kernel * column[..., None, :]


def test_columns_receive_their_share_and_no_row_gives_more_than_it_has() -> None:
    plan = transport(similarities(3, 5, PATCHES, 2), mass=0.8, eps=0.1)
    torch.testing.assert_close(plan.sum(-2), torch.full((3, 5, 2), 0.4), atol=1e-5, rtol=0)
    assert float(plan.sum(-1).max()) <= 1 / PATCHES + 1e-4
    assert bool((plan >= 0).all())
    torch.testing.assert_close(plan.sum((-2, -1)), torch.full((3, 5), 0.8), atol=1e-5, rtol=0)


def test_patches_may_stay_unused_only_below_full_mass() -> None:
    similarity = similarities(PATCHES, 2)
    used = {mass: transport(similarity, mass, eps=0.01, sweeps=2000, tolerance=1e-7).sum(-1) for mass in (0.3, 1.0)}
    assert float(used[0.3].min()) < 0.01 / PATCHES
    torch.testing.assert_close(used[1.0], torch.full((PATCHES,), 1 / PATCHES), atol=1e-5, rtol=0)


def test_at_full_mass_it_is_balanced_sinkhorn() -> None:
    similarity = similarities(PATCHES, 2)
    kernel, column = torch.exp((similarity.double() - 1) / 0.1), torch.ones(2, dtype=torch.float64)
    for _ in range(500):
        row = (1 / PATCHES) / (kernel @ column)
        column = 0.5 / (kernel.T @ row)
    balanced = (row[:, None] * kernel * column).float()
    plan = transport(similarity, mass=1.0, eps=0.1, sweeps=500, tolerance=0)
    torch.testing.assert_close(plan, balanced, atol=1e-6, rtol=1e-3)


def test_log_domain_equals_the_factors_themselves_in_double_precision() -> None:
    similarity = similarities(4, PATCHES, 2)
    expected = linear_transport(similarity, 0.8, 0.1, 100).float()
    torch.testing.assert_close(transport(similarity, 0.8, 0.1, 100, 0), expected, atol=1e-6, rtol=1e-3)


def test_a_small_entropy_neither_underflows_nor_divides_by_zero() -> None:
    """In half precision the factors themselves are NaN here: the kernel is about e^-80."""
    similarity = similarities(4, PATCHES, 2)
    kernel = torch.exp(-(1 - similarity.half()) / 0.01)
    assert not torch.isfinite(1 / (kernel @ torch.ones(2, 1, dtype=torch.float16))).all()
    plan = transport(similarity, 0.8, 0.01)
    assert bool(plan.isfinite().all())
    torch.testing.assert_close(plan.sum(-2), torch.full((4, 2), 0.4), atol=1e-5, rtol=0)
    assert float(plan.sum(-1).max()) <= 1 / PATCHES + 1e-3
    assert bool(transport(torch.tensor([[-1.0, 1.0], [1.0, -1.0]]), 0.8, 0.001).isfinite().all())


def test_a_plan_does_not_depend_on_its_neighbours() -> None:
    """Each stops by itself: sharing one stopping rule would let a hard problem move an easy one."""
    easy, hard = similarities(PATCHES, 2), similarities(PATCHES, 2, low=-1, high=1)
    together, alone = transport(torch.stack([easy, hard]), 0.8, 0.1)[0], transport(easy[None], 0.8, 0.1)[0]
    torch.testing.assert_close(together, alone, atol=1e-8, rtol=1e-5)
    assert float((together / transport(easy, 0.8, 0.1, sweeps=100, tolerance=0) - 1).abs().max()) > 1e-4  # it stopped


def test_plans_of_a_batch_may_stop_together() -> None:
    """As in the public code: a hard neighbour moves an easy plan on, padding and other clients do not."""
    easy, hard = similarities(1, PATCHES, 2), similarities(1, PATCHES, 2, low=-1, high=1)
    clients = torch.stack([torch.stack([easy, hard]), torch.stack([easy, hard])])  # (K, B, C, M, k)
    plans = transport(clients, 0.8, 0.1, together=torch.tensor([[True, True], [True, False]]))
    alone = transport(easy[None, None], 0.8, 0.1, together=torch.tensor([[True]]))
    assert float((plans[0, 0] / plans[1, 0] - 1).abs().max()) > 4e-5
    torch.testing.assert_close(plans[1, 0], alone[0, 0], atol=1e-8, rtol=1e-5)


def test_stopping_together_is_an_option() -> None:
    method, theta, batch = build(stop="batch")
    plain = build()[0]
    assert not torch.equal(method.logits(theta, batch), plain.logits(theta, batch))
    torch.testing.assert_close(method.logits(theta, batch), plain.logits(theta, batch), atol=0.5, rtol=0.05)


def build(**params: Any) -> tuple[FedOTP, dict[str, Tensor], Any]:
    federation = toy_federation(FedOTP, params)
    assert isinstance(federation.method, FedOTP)
    _, theta = federation.theta(federation.start(), ALL)
    return federation.method, theta, first_rows(federation, ALL, [3] * 4, "train", theta)


def test_equal_contexts_share_every_patch_and_are_one_context() -> None:
    method, theta, batch = build()
    theta["own"] = theta["context"]
    patches = batch.pad(batch.patches)
    single = torch.einsum("kbpd,kcd->kbcp", patches, method.encode(theta["context"]))[..., None]
    plan = transport(single, 0.8, 0.1)
    expected = method.backbone.logit_scale * (plan * single).sum((-2, -1))
    torch.testing.assert_close(method.logits(theta, batch), expected, atol=1e-3, rtol=1e-4)
    both = transport(single.expand(*single.shape[:-1], 2), 0.8, 0.1)
    assert torch.equal(both[..., 0], both[..., 1])


def test_the_gradient_flows_through_similarities_alone() -> None:
    method, theta, batch = build()
    leaves = {name: theta[name].clone().requires_grad_() for name in ("context", "own")}
    similarity = torch.einsum("kbpd,kjcd->kbcpj", batch.pad(batch.patches), method.class_features(leaves))
    plan = transport(similarity, 0.8, 0.1)
    assert not plan.requires_grad
    logits = method.backbone.logit_scale * (plan * similarity).sum((-2, -1))
    expected = torch.autograd.grad(logits.square().sum(), list(leaves.values()))
    actual = torch.autograd.grad(method.logits(leaves, batch).square().sum(), list(leaves.values()))
    for one, other in zip(expected, actual, strict=True):
        torch.testing.assert_close(one, other)
        assert one.any()


def test_the_pooled_token_is_not_used() -> None:
    method, theta, batch = build()
    assert "features" not in method.needs
    logits = method.logits(theta, batch)
    assert torch.equal(logits, method.logits(theta, replace(batch, features=torch.full((4, 3, 32), 7.0))))


def test_patches_are_computed_once_and_are_those_of_the_image_tower() -> None:
    method, theta, batch = build()
    federation = toy_federation(FedOTP)
    places = [torch.arange(3)] * 4
    images = torch.cat([torch.from_numpy(toy_dataset().images[toy_partition().train[k][:3]]) for k in ALL])
    read = federation.data.batch(ALL, "train", places, [torch.Generator()] * 4).patches
    torch.testing.assert_close(read, method.backbone.spatial(images), atol=1e-6, rtol=0)
    assert not batch.images.numel()
    assert torch.isfinite(method.logits(theta, batch)).all()


def test_without_mass_or_entropy_there_is_no_transport() -> None:
    for name in ("mass", "eps"):
        with pytest.raises(UserError, match=f"fedotp: {name} = 0 leaves no transport"):
            toy_federation(FedOTP, {name: 0})
