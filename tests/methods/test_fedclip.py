import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.payloads import floats_sent
from torch import Tensor

from fedprompt.harness.conformance.lab import ALL, first_rows
from fedprompt.harness.conformance.toy import toy_dataset, toy_federation, toy_partition
from fedprompt.methods import State
from fedprompt.methods.fedclip import FedCLIP
from fedprompt.methods.zs_clip import ZsClip


def build(**params: Any) -> tuple[FedCLIP, State, Any]:
    federation = toy_federation(FedCLIP, params)
    assert isinstance(federation.method, FedCLIP)
    _, theta = federation.theta(federation.start(), ALL)
    return federation.method, theta, first_rows(federation, ALL, [5, 3, 5, 2], "train", theta)


def flat(theta: State) -> State:
    """An adapter that gives every coordinate the same weight."""
    return {name: torch.zeros_like(x) if name.startswith("second") else x for name, x in theta.items()}


def test_an_even_mask_is_zero_shot() -> None:
    method, theta, batch = build()
    expected = toy_federation(ZsClip).method.predict({}, batch)
    torch.testing.assert_close(method.logits(flat(theta), batch), expected, atol=1e-4, rtol=1e-5)


def test_the_first_mask_is_nearly_even() -> None:
    method, theta, batch = build()
    mask = mask_of(method, theta, batch)
    torch.testing.assert_close(mask.sum(-1), torch.ones(4, 5))
    assert bool((mask > 0).all())
    assert float(mask.max()) < 3 / 24


def mask_of(method: FedCLIP, theta: State, batch: Any) -> Tensor:
    """The mask, from its own definition."""
    raw = method.backbone.projection(batch.features)
    rows = []
    for client in range(len(raw)):
        first, second = ((theta[f"{n}.weight"][client], theta[f"{n}.bias"][client]) for n in ("first", "second"))
        rows.append((torch.tanh(raw[client] @ first[0].T + first[1]) @ second[0].T + second[1]).softmax(-1))
    return torch.stack(rows)


def test_features_are_masked_and_normalised() -> None:
    method, theta, batch = build()
    product = mask_of(method, theta, batch) * method.backbone.projection(batch.features)
    expected = product / product.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(method.masked(theta, batch)[batch.mask], expected[batch.mask])


def test_the_adapter_sees_features_before_they_are_normalised() -> None:
    method, theta, batch = build()
    scaled = replace(batch, features=3 * batch.features)
    assert not torch.allclose(method.masked(theta, batch), method.masked(theta, scaled), atol=1e-4)


def test_the_loss_within_a_batch_does_not_depend_on_its_order() -> None:
    method, theta, batch = build(loss="inbatch")
    order = torch.tensor([1, 0, 2, 3, 4])
    turned = replace(batch, features=batch.features[:, order], given_labels=batch.labels[:, order])
    torch.testing.assert_close(method.loss(theta, turned), method.loss(theta, batch), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("loss", "least", "most"), [("inbatch", math.log(2) - 1e-6, math.inf), ("ce", 0.0, 0.05)])
def test_same_class_negatives_keep_the_loss_within_a_batch_above_log_two(loss: str, least: float, most: float) -> None:
    """Both images have the same text, so half of the probability is always wasted; over classes it is not."""
    federation = toy_federation(FedCLIP, {"loss": loss})
    _, theta = federation.theta(federation.start(), (2,))
    batch = first_rows(federation, (2,), [2], "train", theta)
    batch = replace(batch, given_labels=torch.zeros_like(batch.labels))
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in theta.items()}
    optimiser = torch.optim.Adam(leaves.values(), lr=0.05)
    for _ in range(100):
        optimiser.zero_grad()
        found = federation.method.loss(leaves, batch).sum()
        assert found.item() >= least
        found.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert found.item() <= most


def test_padding_is_nobodys_negative() -> None:
    method, theta, batch = build(loss="inbatch")
    federation = toy_federation(FedCLIP, {"loss": "inbatch"})
    alone = first_rows(federation, (3,), [2], "train", {})
    own = {name: tensor[3:4] for name, tensor in theta.items()}
    torch.testing.assert_close(method.loss(theta, batch)[3:], method.loss(own, alone), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("loss", ["ce", "inbatch"])
def test_scores_have_one_column_per_class_and_do_not_depend_on_other_images(loss: str) -> None:
    """A list of the batch's true names in place of the classes would leak the labels."""
    method, theta, batch = build(loss=loss)
    scores = method.predict(theta, batch)
    assert scores.shape == (4, 5, 4)
    others = batch.features.clone()
    others[:, 1:] = 0
    changed = replace(batch, features=others, given_labels=(batch.labels + 1) % 4)
    torch.testing.assert_close(method.predict(theta, changed)[:, 0], scores[:, 0])


def test_payload_is_two_square_maps() -> None:
    assert floats_sent(build()[0]) == (2 * (24 * 24 + 24),) * 2


def test_kept_features_give_the_gradients_of_the_images() -> None:
    federation = toy_federation(FedCLIP)
    _, theta = federation.theta(federation.start(), ALL)
    batch = first_rows(federation, ALL, [5, 3, 5, 2], "train", theta)
    rows = np.concatenate([part[:size] for part, size in zip(toy_partition().train, (5, 3, 5, 2), strict=True)])
    passed = batch.pad(federation.method.backbone.cls(torch.from_numpy(toy_dataset().images[rows])))

    def gradients(features: Tensor) -> tuple[Tensor, ...]:
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in theta.items()}
        loss = federation.method.loss(leaves, replace(batch, features=features)).sum()
        return torch.autograd.grad(loss, list(leaves.values()))

    assert any(gradient.any() for gradient in gradients(passed))
    torch.testing.assert_close(gradients(passed), gradients(batch.features), atol=1e-5, rtol=1e-4)
