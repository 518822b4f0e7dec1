from typing import Any

import pytest
import torch
from support.payloads import floats_sent
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.lab import ALL, after_rounds, first_rows
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.methods import State
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods.fedpha import FedPHA, push, subspace


def build(rounds: int = 0, **params: Any) -> tuple[FedPHA, State, Any]:
    federation, state = after_rounds(FedPHA, params, rounds)
    assert isinstance(federation.method, FedPHA)
    _, theta = federation.theta(state, ALL)
    return federation.method, theta, first_rows(federation, ALL, [3] * 4, "train", theta)


def context(rows: int = 10, width: int = 24) -> torch.Tensor:
    return torch.randn(2, rows, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("full", "rank"), [(False, 10 - 2), (True, 24 - 2)])
def test_the_subspace_is_a_projection_of_the_right_rank(full: bool, rank: int) -> None:
    projector = subspace(context().double(), 0.8, full)
    torch.testing.assert_close(projector, projector.mT)
    torch.testing.assert_close(projector @ projector, projector)
    assert torch.linalg.matrix_rank(projector).tolist() == [rank, rank]


@pytest.mark.parametrize("full", [False, True])
def test_the_subspace_has_the_gradient_of_finite_differences(full: bool) -> None:
    leaf = context(4, 6).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: subspace(rows, 0.5, full), leaf)


def test_by_default_the_subspace_is_a_constant_of_the_step() -> None:
    def gradient(**params: Any) -> torch.Tensor:
        method, theta, batch = build(**params)
        leaf = theta["context"].clone().requires_grad_()
        (grad,) = torch.autograd.grad(method.loss({**theta, "context": leaf}, batch).sum(), leaf)
        return grad

    through, constant = gradient(svd_gradient=True), gradient()
    assert torch.isfinite(through).all()
    assert not torch.allclose(through, constant)


def test_directions_are_cut_by_exact_shares() -> None:
    """Truncated floats would cut 0, 1 and 2 of 5, 10 and 15: 5 * (1 - 0.8) is 0.9999..."""
    ranks = {rows: int(torch.linalg.matrix_rank(subspace(context(rows).double(), 0.8)[0])) for rows in (5, 10, 15)}
    assert ranks == {5: 4, 10: 8, 15: 12}


def test_strong_directions_are_left_out() -> None:
    strong = context(3).double()
    strong[:, 0] *= 100
    projector = subspace(strong, 0.6)  # one of three directions is cut
    along = F.normalize(strong[0, 0], dim=0)
    assert float((along @ projector[0]).norm()) < 0.1


def test_everything_is_kept_by_the_full_subspace_at_rho_one() -> None:
    _, theta, _ = build()
    projected = theta["own"] @ subspace(theta["context"], 1.0, full=True)
    torch.testing.assert_close(projected, theta["own"], atol=1e-5, rtol=1e-4)


def test_the_push_ends_at_alpha() -> None:
    local, shared = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.0, 1.0]]])
    assert push(local, shared, 1.0).item() == 0  # sqrt(2) apart
    assert push(local, local, 1.0).item() == pytest.approx(1.0, abs=1e-5)
    assert push(local, shared, 2.0).item() == pytest.approx(2 - 2**0.5)
    leaf = local.clone().requires_grad_()
    (grad,) = torch.autograd.grad(push(leaf, local, 1.0), leaf)
    assert bool(grad.isfinite().all())


def test_the_loss_has_four_parts() -> None:
    method, theta, batch = build(1)
    images, own = method.image_features(batch), theta["own"]
    local, shared = method.encode(own), method.encode(theta["context"])
    projected = method.encode(own @ subspace(theta["context"], 0.8))
    fits = sum(cross_entropy(100 * images @ classes.mT, batch) for classes in (local, shared))
    pull = torch.stack([F.mse_loss(a, b) for a, b in zip(local, projected, strict=True)])
    apart = (1 - (local - shared).norm(dim=-1)).clamp(min=0).mean(1)
    torch.testing.assert_close(method.loss(theta, batch), fits + pull + apart, atol=1e-3, rtol=1e-5)


def test_only_the_private_context_predicts() -> None:
    method, theta, batch = build(1)
    elsewhere = {**theta, "context": theta["context"] + 1}
    assert torch.equal(method.predict(theta, batch), method.predict(elsewhere, batch))


def test_contexts_of_each_length_are_read_at_their_own_end() -> None:
    """Tokenised once for the longest, every shorter context would be read at a padding token."""
    method, theta, _ = build(own_lengths="3,5")
    for length, prompts in method.own_prompts.items():
        names = [len(method.backbone.text.tokenizer(f"latin small letter {name}")) - 2 for name in "abcd"]
        assert prompts.ends.tolist() == [1 + length + name + 1 for name in names]  # start, context, name, full stop
    features = method.class_features(theta)
    for client, length in enumerate((3, 5, 3, 5)):
        alone = method.backbone.text_features(theta["own"][client : client + 1, :length], method.own_prompts[length])
        torch.testing.assert_close(features[client], alone[0])


def test_rows_beyond_a_clients_length_stay_empty() -> None:
    _, theta, _ = build(2, own_lengths="3,5")
    assert not theta["own"][[0, 2], 3:].any()
    assert theta["own"][[1, 3], 3:].any(-1).all()
    assert theta["own.length"].flatten().tolist() == [3, 5, 3, 5]


def test_clients_of_different_lengths_share_one_context() -> None:
    federation, state = after_rounds(FedPHA, {"own_lengths": "3,5", "length": 4}, 1)
    assert {name: tuple(tensor.shape) for name, tensor in state.server.items()} == {"context": (4, 16)}
    assert floats_sent(federation.method) == (64, 64)


@pytest.mark.parametrize("lengths", ["", "x", "0,4"])
def test_what_is_not_a_length_is_refused(lengths: str) -> None:
    with pytest.raises(UserError, match="are not lengths; write 16, or 8,16,32"):
        toy_federation(FedPHA, {"own_lengths": lengths})
