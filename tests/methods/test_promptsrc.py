import dataclasses
from math import exp
from typing import Any

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from fedprompt.harness.conformance.lab import ALL, after_rounds, first_rows
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.methods import Batch, State
from fedprompt.methods.promptsrc import PromptSRC

NO_PULL = {"text_pull": 0.0, "image_pull": 0.0, "logit_pull": 0.0}


def build(rounds: int = 3, **params: Any) -> tuple[PromptSRC, State, Batch]:
    federation = toy_federation(PromptSRC, params, rounds=rounds)
    assert isinstance(federation.method, PromptSRC)
    _, theta = federation.theta(federation.start(), ALL)
    return federation.method, theta, first_rows(federation, ALL, [3] * 4, "train", theta)


def test_without_pulls_and_average_it_is_independent_deep_prompting() -> None:
    method, theta, batch = build(spread=0, **NO_PULL)
    assert set(theta) == {"text", "visual"}
    logits = method.cosine_logits(method.prompted_images(theta, batch), method.encode(theta["text"]))
    expected = F.cross_entropy(logits.mT, batch.labels, reduction="none").mean(1)
    torch.testing.assert_close(method.loss(theta, batch), expected)


def test_the_pulls_are_distances_of_features_and_predictions() -> None:
    method, theta, batch = build()
    texts, images, frozen = (
        method.encode(theta["text"]),
        method.prompted_images(theta, batch),
        method.image_features(batch),
    )
    q = (100 * frozen @ method.reference.T).softmax(-1)
    p = (100 * images @ texts.mT).softmax(-1)
    expected = {
        "text_pull": (texts - method.reference).abs().sum((1, 2)) / (4 * 24),  # classes, dimensions
        "image_pull": (images - frozen).abs().sum((1, 2)) / (3 * 24),
        "logit_pull": (q * (q / p).log()).sum((1, 2)) / (3 * 4),
    }
    for name, term in expected.items():
        with_one = build(**NO_PULL | {name: 2.0})[0].loss(theta, batch)
        found = with_one - build(**NO_PULL)[0].loss(theta, batch)
        torch.testing.assert_close(found, 2 * term, atol=1e-4, rtol=1e-4)


def test_visual_prompts_change_the_image_features() -> None:
    method, theta, batch = build()
    frozen, prompted = method.image_features(batch), method.prompted_images(theta, batch)
    moved = method.prompted_images(theta | {"visual": theta["visual"] + torch.randn(32)}, batch)
    assert float((prompted - frozen).abs().max()) > 1e-3
    assert float((prompted - moved).abs().max()) > 1e-3


def averaged(rounds: list[float], **params: float) -> float:
    """The mean that predicts after rounds whose averages are those numbers."""
    method = build(len(rounds), **params)[0]
    server = method.init_server(torch.Generator().manual_seed(0))
    for value in rounds:
        uploads = {name: torch.full((1, *server[name].shape), value) for name in ("text", "visual")}
        server = method.aggregate(server, uploads, torch.ones(1, dtype=torch.double), [0])
        assert float(server["text"].mean()) == pytest.approx(value)  # what is sent
    assert len(server["mean.text"].unique()) == 1
    return float(server["mean.visual"].mean())


def test_after_one_round_the_mean_is_that_rounds_whatever_its_weight() -> None:
    assert averaged([3.0]) == 3
    method = build(100)[0]
    assert float(method.share(torch.ones(1))) == 1  # of a weight of exp(-109) among all


def test_a_constant_average_is_its_own_mean() -> None:
    assert averaged([0.7] * 20) == pytest.approx(0.7)


def test_rounds_weigh_by_a_gaussian() -> None:
    values = [float(t * t) for t in range(1, 21)]
    weights = [exp(-((t - 15) ** 2) / 2) for t in range(1, 21)]  # of 20 rounds: mean 15, deviation 1
    expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
    assert averaged(values) == pytest.approx(expected, rel=1e-4)


def test_the_mean_predicts_and_does_not_train() -> None:
    method, theta, batch = build()
    moved = theta | {"shift.text": theta["shift.text"] + 0.1 * torch.randn(16), "shift.visual": theta["visual"]}
    assert torch.equal(method.loss(theta, batch), method.loss(moved, batch))
    evaluated = dataclasses.replace(batch, stage="evaluate", start={})
    assert not torch.allclose(method.predict(theta, evaluated), method.predict(moved, evaluated), atol=1e-3)


def test_clients_predict_with_the_servers_mean() -> None:
    federation, state = after_rounds(PromptSRC, None, 3)
    assert isinstance(federation.method, PromptSRC)
    _, theta = federation.theta(state, ALL)
    torch.testing.assert_close(federation.method.context(theta)[2], state.server["mean.text"])
    torch.testing.assert_close(federation.method.visual(theta)[0], state.server["mean.visual"])
    assert not torch.equal(state.server["mean.text"], state.server["text"])
