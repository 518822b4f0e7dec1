from typing import Any

import pytest
import torch

from fedprompt.harness.conformance.lab import ALL, first_rows
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.measuring.evaluation import adapt
from fedprompt.methods import State
from fedprompt.methods.prompt_fedamp import PromptFedAMP

N, M, D = 4, 16, 16


def method(**params: object) -> Any:
    return toy_federation(PromptFedAMP, params).method


def server(spread: float = 1.0, known: tuple[int, ...] = (1, 1, 1, 1)) -> State:
    pool = spread * torch.randn(N, M, D, generator=torch.Generator().manual_seed(0))
    return {"pool": pool, "known": torch.tensor(known, dtype=torch.float32)}


@pytest.mark.parametrize("spread", [1e-3, 0.02, 1.0])
@pytest.mark.parametrize("known", [(0, 0, 0, 0), (1, 0, 1, 0), (1, 1, 1, 1)])
def test_weights_are_a_convex_mixture(spread: float, known: tuple[int, ...]) -> None:
    weights = method().mixing(server(spread, known))
    torch.testing.assert_close(weights.sum(1), torch.ones(N, dtype=torch.float64))
    assert bool(((weights >= 0) & (weights <= 1)).all())
    assert bool((weights.diagonal() >= 1 / N - 1e-12).all())


def test_published_constants_need_not_be_convex() -> None:
    """With alpha = sigma = 1 near neighbours make a client's own weight negative."""
    assert float(method(sigma=1.0, alpha=1.0).mixing(server(1e-3)).diagonal().min()) < 0


def test_identical_contexts_mix_to_themselves() -> None:
    alike = server()
    alike["pool"] = alike["pool"][:1].repeat(N, 1, 1)
    torch.testing.assert_close(method().download(alike, ALL)["mixture"], alike["pool"])


def test_a_closer_neighbour_weighs_more() -> None:
    held = server(0.02)
    held["pool"][1] = held["pool"][0] + 0.001
    weights = method().mixing(held)
    assert weights[0, 1] > weights[0, 2]


def test_an_endless_reach_gives_the_uniform_mean() -> None:
    held = server()
    mixture = method(sigma=1e12).download(held, ALL)["mixture"]
    torch.testing.assert_close(mixture, held["pool"].mean(0).expand(N, -1, -1), atol=1e-6, rtol=1e-6)


def test_clients_without_an_upload_attract_nobody() -> None:
    weights = method().mixing(server(0.02, (1, 0, 1, 0)))
    assert bool((weights[[0, 2], 1] == 0).all())
    assert bool((weights[[0, 2], 3] == 0).all())


def test_the_penalty_has_the_gradient_of_its_formula() -> None:
    federation = toy_federation(PromptFedAMP, {"pull": 0.7})
    theta = federation.theta(federation.start(), ALL)[1]
    batch = first_rows(federation, ALL, [5] * 4, "train", theta)
    gradients = []
    drift = 0.1 * torch.randn(N, M, D, generator=torch.Generator().manual_seed(1))
    for mixture in (theta["context"], theta["context"] - drift):
        leaf = theta["context"].clone().requires_grad_()
        loss = federation.method.loss({"context": leaf, "mixture": mixture}, batch)
        gradients.append(torch.autograd.grad(loss.sum(), leaf)[0])
    torch.testing.assert_close(gradients[1] - gradients[0], 0.7 * drift, atol=1e-6, rtol=1e-4)


def test_in_the_first_round_everybody_is_sent_the_first_draw() -> None:
    federation = toy_federation(PromptFedAMP)
    state = federation.start()
    theta = federation.theta(state, ALL)[1]
    torch.testing.assert_close(theta["mixture"], state.server["pool"])


def test_only_the_mixture_travels_down() -> None:
    federation = toy_federation(PromptFedAMP, participation=1.0)
    state = federation.start()
    for _ in range(2):
        log = federation.step(state)
        assert (log.floats_down, log.floats_up) == (N * M * D, N * M * D)


def test_a_client_keeps_what_it_trained() -> None:
    federation = toy_federation(PromptFedAMP, eval_point="post_local")
    state = federation.start()
    federation.step(state, (0, 1))
    held = federation.theta(state, ALL)[1]["context"]
    for client in (0, 1):
        assert torch.equal(held[client], state.local[client]["context"])
    assert not torch.equal(held[0], held[1])


def test_an_unseen_client_starts_from_the_mean_of_what_is_known() -> None:
    federation = toy_federation(PromptFedAMP)
    state = federation.start()
    federation.step(state, (0, 1))
    mean = state.server["pool"][:2].mean(0)
    torch.testing.assert_close(federation.theta(state, [3], unseen=True)[1]["context"][0], mean)
    adapted = adapt(federation, state, [3], 2, unseen=True, shared=False)
    assert not torch.equal(adapted["context"][0], mean)
    torch.testing.assert_close(adapted["mixture"][0], mean)
