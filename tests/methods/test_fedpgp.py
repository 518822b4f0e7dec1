from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from fedprompt.harness.conformance.lab import ALL, after_rounds, first_rows, same_bits
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.methods import State
from fedprompt.methods.fedpgp import FedPGP, contrast
from fedprompt.methods.promptfl import PromptFL


def build(**params: Any) -> tuple[FedPGP, State, Any]:
    federation = toy_federation(FedPGP, params)
    assert isinstance(federation.method, FedPGP)
    _, theta = federation.theta(federation.start(), ALL)
    return federation.method, theta, first_rows(federation, ALL, [3] * 4, "train", theta)


def test_what_a_client_adds_has_low_rank_and_is_small_at_first() -> None:
    method, theta, _ = build(rank=3)
    added = method.context(theta) - theta["context"]
    assert torch.linalg.matrix_rank(added.double(), rtol=1e-3).tolist() == [3] * 4
    assert 0 < float(added.std()) < 0.002  # 0.02^2 sqrt(b), beside the context's 0.02
    assert theta["left"].any()
    assert theta["right"].any()  # neither starts at zero


def test_without_a_left_factor_both_contexts_are_one() -> None:
    method, theta, _ = build()
    theta["left"] = torch.zeros_like(theta["left"])
    own, shared = method.encode(method.context(theta)), method.encode(theta["context"])
    assert torch.equal(own, shared)
    torch.testing.assert_close((own * shared).sum(-1), torch.ones(4, 4))


def test_the_contrast_is_infonce_with_one_positive_and_one_negative() -> None:
    rng = torch.Generator().manual_seed(0)
    shared, own, reference = (F.normalize(torch.randn(2, 4, 24, generator=rng), dim=-1) for _ in range(3))
    logits = torch.stack([(shared * reference).sum(-1), (shared * own).sum(-1)], dim=-1) / 0.5
    expected = -logits.log_softmax(-1)[..., 0].mean(-1)  # over the classes
    torch.testing.assert_close(contrast(shared, own, reference, 0.5), expected)


def test_the_contrast_reaches_both_contexts_and_not_the_reference() -> None:
    method, theta, batch = build(mu=1.0)
    names = ("context", "left", "right")
    leaves = {name: theta[name].clone().requires_grad_() for name in names}
    with_contrast = torch.autograd.grad(method.loss({**theta, **leaves}, batch).sum(), list(leaves.values()))
    plain = build(mu=0.0)[0]
    without = torch.autograd.grad(plain.loss({**theta, **leaves}, batch).sum(), list(leaves.values()))
    for one, other in zip(with_contrast, without, strict=True):
        assert float((one - other).abs().max()) > 1e-6
    assert not method.reference.requires_grad


def test_without_rank_and_contrast_it_is_promptfl() -> None:
    _, state = after_rounds(FedPGP, {"rank": 0, "mu": 0.0}, 2)
    _, expected = after_rounds(PromptFL, {}, 2)
    same_bits(expected.server, state.server, "FedPGP without its parts")


def test_logits_have_one_column_per_class() -> None:
    """Two prompts per class would give twice as many, the second half of them wrong answers."""
    method, theta, batch = build()
    assert method.logits(theta, batch).shape == (4, 3, 4)


def test_only_the_shared_context_travels() -> None:
    federation = toy_federation(FedPGP)
    received = hooks.download(federation.method, federation.start().server, ALL)
    assert {name: tuple(tensor.shape) for name, tensor in received.items()} == {"context": (4, 16, 16)}


@pytest.mark.parametrize(("ref", "templates"), [("template", ["a photo of a {}."]), ("placeholder", ["X X X {}."])])
def test_the_reference_is_a_fixed_prompt(ref: str, templates: list[str]) -> None:
    method = build(ref=ref, length=3)[0]
    expected = method.backbone.template_features(method.task.class_names, templates)
    torch.testing.assert_close(method.reference, expected)
