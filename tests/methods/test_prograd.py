import dataclasses
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from fedprompt.harness.conformance.lab import ALL, after_rounds, first_rows, same_bits
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.methods import Batch, State
from fedprompt.methods.prograd import ProGrad
from fedprompt.methods.promptfl import PromptFL


def build(**params: Any) -> tuple[ProGrad, State, Batch]:
    federation = toy_federation(ProGrad, params)
    assert isinstance(federation.method, ProGrad)
    _, theta = federation.theta(federation.start(), ALL)
    return federation.method, theta, first_rows(federation, ALL, [3] * 4, "train", theta)


def gradient(method: ProGrad, theta: State, batch: Batch) -> torch.Tensor:
    leaf = theta["context"].clone().requires_grad_()
    return torch.autograd.grad(method.loss({"context": leaf}, batch).sum(), leaf)[0]


def test_without_strength_it_is_promptfl() -> None:
    _, state = after_rounds(ProGrad, {"strength": 0.0}, 2)
    same_bits(after_rounds(PromptFL, {}, 2)[1].server, state.server, "without strength")


def test_the_guide_is_the_divergence_from_zero_shot_predictions_up_to_a_constant() -> None:
    method, theta, batch = build(temperature=2.0)
    zero_shot = 100 * method.image_features(batch) @ method.reference.T
    target = (zero_shot / 2).log_softmax(-1)
    leaf = method.logits(theta, batch).detach().requires_grad_()
    divergence = 4 * F.kl_div((leaf / 2).log_softmax(-1), target, log_target=True, reduction="none").sum(-1).mean(1)
    (expected,) = torch.autograd.grad(divergence.sum(), leaf)
    (found,) = torch.autograd.grad(method.disagreement(leaf, batch).sum(), leaf)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_the_loss_is_the_cross_entropy() -> None:
    method, theta, batch = build()
    entropy = F.cross_entropy(method.logits(theta, batch).mT, batch.labels, reduction="none").mean(1)
    torch.testing.assert_close(method.loss(theta, batch), entropy)


def test_steps_never_contradict_the_guide() -> None:
    method, theta, batch = build()
    zero_shot = method.image_features(batch) @ method.reference.T
    likely, unlikely = zero_shot.argmax(-1), zero_shot.argmin(-1)
    batch = dataclasses.replace(batch, given_labels=torch.cat([likely[:2], unlikely[2:]]))
    leaf = theta["context"].clone().requires_grad_()
    guide = torch.autograd.grad(method.disagreement(method.logits({"context": leaf}, batch), batch).sum(), leaf)[0]
    plain, projected = gradient(build(strength=0.0)[0], theta, batch), gradient(method, theta, batch)
    agreement = (plain * guide).sum((1, 2))
    assert (agreement > 0).tolist() == [True, True, False, False]
    assert ((projected * guide).sum((1, 2)) > -1e-4 * agreement.abs()).all()
    assert [bool((p == q).all()) for p, q in zip(plain, projected, strict=True)] == [True, True, False, False]


def test_at_zero_shot_predictions_the_gradient_is_the_tasks() -> None:
    method, theta, batch = build()
    method.reference = method.class_features(theta)[0].detach()
    torch.testing.assert_close(gradient(method, theta, batch), gradient(build(strength=0.0)[0], theta, batch))
