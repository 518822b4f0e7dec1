from collections.abc import Sequence
from typing import Any

import pytest
import torch
from support.payloads import floats_sent
from torch import Tensor

from fedprompt.harness.conformance.lab import ALL, first_rows
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.measuring.evaluation import evaluate
from fedprompt.methods import Downloads, State
from fedprompt.methods.promptfl import PromptFL
from fedprompt.methods.promptfolio import PromptFolio


def build(**params: Any) -> tuple[PromptFolio, State, Any]:
    federation = toy_federation(PromptFolio, params)
    assert isinstance(federation.method, PromptFolio)
    _, theta = federation.theta(federation.start(), ALL)
    return federation.method, theta, first_rows(federation, ALL, [3] * 4, "train", theta)


def plain(context: Tensor, batch: Any) -> Tensor:
    """Logits of PromptFL, or of CoOp, with this context."""
    return toy_federation(PromptFL).method.predict({"context": context}, batch)


@pytest.mark.parametrize(("share", "used", "unused"), [(0.0, "context", "own"), (1.0, "own", "context")])
def test_all_weight_on_one_context_is_promptfl_or_coop(share: float, used: str, unused: str) -> None:
    method, theta, batch = build(theta=share)
    torch.testing.assert_close(method.logits(theta, batch), plain(theta[used], batch))
    leaf = theta[unused].clone().requires_grad_()
    (grad,) = torch.autograd.grad(method.loss({**theta, unused: leaf}, batch).sum(), leaf)
    assert not grad.any()


@pytest.mark.parametrize("share", [0.0, 0.4, 0.7])
def test_equal_contexts_are_one_context(share: float) -> None:
    method, theta, batch = build(theta=share)
    theta["own"] = theta["context"]
    torch.testing.assert_close(method.logits(theta, batch), plain(theta["context"], batch))


def test_the_mixture_is_shorter_than_its_parts_unless_they_coincide() -> None:
    method, theta, _ = build()
    assert float(method.class_features(theta).norm(dim=-1).max()) < 1 - 1e-6
    theta["own"] = theta["context"]
    torch.testing.assert_close(method.class_features(theta).norm(dim=-1), torch.ones(4, 4))
    normed, theta, _ = build(mix_norm=True)
    torch.testing.assert_close(normed.class_features(theta).norm(dim=-1), torch.ones(4, 4))


def test_the_private_context_begins_elsewhere() -> None:
    _, theta, _ = build()
    assert not torch.equal(theta["own"], theta["context"])
    assert torch.equal(theta["own"][0], theta["own"][3])  # one draw for all clients


@pytest.mark.parametrize("cohort", [(0, 2, 3), (3, 0, 2)])
def test_weights_belong_to_the_clients_they_come_from(cohort: tuple[int, ...]) -> None:
    """With part of the clients and unequal sizes: an average indexed by client would pair the wrong ones."""
    current: tuple[int, ...] = ()

    class Served(PromptFolio, Downloads):
        def download(self, server: State, clients: Sequence[int]) -> State:
            nonlocal current
            current = tuple(clients)
            assert current == (next(visitors),)
            return super().download(server, clients)

    federation, visitors = toy_federation(Served, stack=1), iter(cohort)
    state = federation.start()

    def constant(theta: State, received: State) -> State:
        return {"context": torch.stack([torch.full((16, 16), float(client)) for client in current])}

    federation.method.upload = constant  # type: ignore[method-assign]
    federation.step(state, cohort)
    expected = (13 * 0 + 21 * 2 + 5 * 3) / (13 + 21 + 5)
    torch.testing.assert_close(state.server["context"], torch.full((16, 16), expected))


def test_every_client_is_scored_whoever_took_part() -> None:
    federation = toy_federation(PromptFolio)
    state = federation.start()
    federation.step(state, (1, 2))
    assert {record.client for record in evaluate(federation, state)} == set(ALL)


def test_only_the_shared_rows_travel() -> None:
    federation = toy_federation(PromptFolio, {"length": 5})
    received = hooks.download(federation.method, federation.start().server, ALL)
    assert {name: tuple(tensor.shape) for name, tensor in received.items()} == {"context": (4, 5, 16)}
    assert floats_sent(federation.method) == (80, 80)
