from typing import Any

import pytest
import torch
from support.payloads import floats_sent

from fedprompt.backbones.backbone import shallow
from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.lab import ALL, after_rounds, first_rows
from fedprompt.harness.conformance.toy import toy_backbone, toy_federation
from fedprompt.methods import State, Task
from fedprompt.methods.pfeddc import PFedDC, PFedDCParams


def build(rounds: int = 0, **params: Any) -> tuple[PFedDC, State, Any]:
    federation, state = after_rounds(PFedDC, params, rounds)
    assert isinstance(federation.method, PFedDC)
    _, theta = federation.theta(state, ALL)
    return federation.method, theta, first_rows(federation, ALL, [5, 3, 5, 2], "train", theta)


def without_answer(theta: State) -> State:
    """Attention whose output map is zero."""
    attention = {name: x.clone() for name, x in theta.items() if name.startswith(("text.", "image."))}
    for tensor in attention.values():
        tensor[:, 3] = 0
    return {**theta, **attention}


def test_attention_that_answers_nothing_leaves_the_shared_prompts() -> None:
    method, theta, batch = build(1)
    theta = without_answer(theta)
    assert torch.equal(method.context(theta), theta["context"])
    images = method.backbone.image_features(batch.images, shallow(batch.rows(theta["visual"])))
    expected = method.cosine_logits(batch.pad(images), method.encode(theta["context"]))
    torch.testing.assert_close(method.logits(theta, batch), expected)


def test_the_order_of_private_rows_does_not_matter() -> None:
    method, theta, _ = build(1)
    turned = {**theta, "own.context": theta["own.context"].flip(1)}
    torch.testing.assert_close(method.context(theta), method.context(turned))


def test_prompts_may_ask_the_other_way_and_without_a_residual() -> None:
    method, theta, _ = build(1, query="local")
    assert torch.equal(method.context(without_answer(theta)), theta["own.context"])
    method, theta, _ = build(1, residual=False)
    assert not method.context(without_answer(theta)).any()


def test_only_the_shared_prompts_travel() -> None:
    federation, state = after_rounds(PFedDC, {}, 1)
    received, theta = federation.theta(state, ALL)
    assert set(received) == {"context", "visual"} == set(federation.method.upload(theta, received))
    assert floats_sent(federation.method) == (16 * 16 + 8 * 32,) * 2


def test_gradients_reach_both_prompts_and_the_attention_of_both_towers() -> None:
    method, theta, batch = build(2)
    leaves = {name: theta[name].clone().requires_grad_() for name in method.rates()}
    grads = torch.autograd.grad(method.loss(leaves, batch).sum(), list(leaves.values()))
    still = [name for name, grad in zip(leaves, grads, strict=True) if not grad.any()]
    assert still == []
    assert {"text.weight", "image.weight", "own.visual"} <= leaves.keys()
    attention = dict(zip(leaves, grads, strict=True))["image.weight"]
    assert attention.flatten(2).any(-1).all()  # all four maps of every client


def test_without_visual_tokens_text_is_left_alone() -> None:
    method, theta, batch = build(visual_length=0)
    assert not any(name.startswith(("visual", "own.visual", "image.")) for name in theta)
    images = batch.pad(method.backbone.image_features(batch.images))
    expected = method.cosine_logits(images, method.encode(method.context(theta)))
    assert torch.equal(method.logits(theta, batch), expected)


def test_visual_prompts_enter_before_the_first_norm() -> None:
    method, theta, batch = build(1)
    entered = []

    def twice(x: torch.Tensor) -> torch.Tensor:
        entered.append(x.shape)
        return 2 * x

    method.backbone.vit.norm_pre.forward = twice  # type: ignore[method-assign]
    method.prompted_features(theta, batch)
    assert (4, 8, 32) in entered


def test_attention_has_its_own_rate() -> None:
    rates = build(attention_lr=0.5, lr=0.1)[0].rates()
    assert (rates["context"], rates["own.visual"], rates["image.bias"]) == (0.1, 0.1, 0.5)


def test_a_tower_without_prompts_or_text_is_refused() -> None:
    with pytest.raises(UserError, match="method 'pfeddc' needs text"):
        PFedDC(PFedDCParams(), toy_backbone(), Task(("a",), torch.ones(1, 1)))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="heads = 3 does not divide"):
        toy_federation(PFedDC, {"heads": 3})
