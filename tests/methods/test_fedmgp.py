from dataclasses import replace
from typing import Any

import pytest
import torch
from support.payloads import floats_sent
from torch import Tensor

from fedprompt.backbones.backbone import shallow
from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.lab import ALL, after_rounds, first_rows
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.methods import Stage, State
from fedprompt.methods._headed import cross_entropy
from fedprompt.methods.fedmgp import KINDS, FedMGP, group_distance, slot_likeness


def after(rounds: int, **params: Any) -> tuple[Federation, FedMGP, FederationState]:
    federation, state = after_rounds(FedMGP, params, rounds)
    assert isinstance(federation.method, FedMGP)
    return federation, federation.method, state


def build(rounds: int = 0, **params: Any) -> tuple[FedMGP, State, Any]:
    federation, method, state = after(rounds, **params)
    _, theta = federation.theta(state, ALL)
    return method, theta, first_rows(federation, ALL, [4, 2, 4, 3], "train", theta)


def mean_distance(method: FedMGP, theta: State, batch: Any) -> Tensor:
    return group_distance(method.class_features(theta)).mean(1) + batch.mean(
        group_distance(method.group_images(theta, batch))
    )


def test_a_step_on_diversity_alone_moves_groups_apart() -> None:
    """The sign is easily lost: an absolute value around the negative distance pulls all groups together."""
    only, theta, batch = build(diversity=1.0)
    without = build(diversity=0.0)[0]
    leaves = {name: theta[name].clone().requires_grad_() for name in KINDS}
    objective = only.loss({**theta, **leaves}, batch) - without.loss({**theta, **leaves}, batch)
    grads = torch.autograd.grad(objective.sum(), list(leaves.values()))
    moved = {name: theta[name] - 1e-4 * grad for name, grad in zip(leaves, grads, strict=True)}
    before, later = (mean_distance(only, held, batch) for held in (theta, {**theta, **moved}))
    assert bool((later > before).all())


def test_spread_is_the_mean_over_pairs_and_dimensions() -> None:
    features = torch.tensor([[[[0.0, 0.0]], [[1.0, 3.0]], [[2.0, 0.0]]]])  # one client, three groups, one row
    assert group_distance(features).item() == pytest.approx((2.0 + 1.0 + 2.0) / 3)
    assert group_distance(features[:, :1]).item() == 0


def test_one_group_is_promptfl_with_a_visual_prompt() -> None:
    method, theta, batch = build(1, groups=1, exchanged=1)
    images = batch.pad(
        method.backbone.image_features(batch.images, shallow(batch.rows(theta["slots.visual"][:, 0])))
    )  # fmt: skip
    logits = method.cosine_logits(images, method.encode(theta["slots.text"][:, 0]))
    torch.testing.assert_close(method.loss(theta, batch), cross_entropy(logits, batch))
    torch.testing.assert_close(method.predict(theta, batch), logits, atol=1e-4, rtol=1e-5)


def test_groups_predict_together_and_learn_apart() -> None:
    method, theta, batch = build(1, groups=3, diversity=0.0)
    images, classes = method.group_images(theta, batch), method.class_features(theta)
    logits = [method.cosine_logits(images[:, j], classes[:, j]) for j in range(3)]
    torch.testing.assert_close(method.predict(theta, batch), sum(logits) / 3, atol=1e-4, rtol=1e-5)
    losses = [cross_entropy(each, batch) for each in logits]
    torch.testing.assert_close(method.loss(theta, batch), sum(losses) / 3)


def visited(method: FedMGP, theta: State, noise: Tensor) -> State:
    return {**theta, **method.end_stage(Stage("train", {}, 1), {**theta, "noise": noise, "fresh": torch.zeros(4, 1)})}


def test_without_temperature_the_nearest_groups_are_sent() -> None:
    method, theta, _ = build(2, tau=1e-6)
    noise = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    near = sum(slot_likeness(method.held(theta, kind), theta[f"sent.{kind}"]) for kind in KINDS)
    drawn = visited(method, theta, noise)["drawn"].sort(1).values
    assert torch.equal(drawn, torch.as_tensor(near).topk(2, dim=1).indices.sort(1).values)


def test_draws_follow_the_softmax_of_the_likeness() -> None:
    method, theta, _ = build(2, tau=0.3, exchanged=1)
    near = sum(slot_likeness(method.held(theta, kind), theta[f"sent.{kind}"]) for kind in KINDS) / 2
    expected = (torch.as_tensor(near) / 0.3).softmax(1)[0]
    rng, counts = torch.Generator().manual_seed(0), torch.zeros(5)
    for _ in range(1500):
        noise = -(-torch.rand(4, 5, generator=rng).log()).log()
        counts[visited(method, theta, noise)["drawn"][0, 0]] += 1
    torch.testing.assert_close(counts / 1500, expected, atol=0.04, rtol=0)


def test_a_first_visit_draws_evenly() -> None:
    method, theta, _ = build(0, tau=1e-6)
    noise = torch.tensor([[0.0, 1.0, 4.0, 2.0, 3.0]] * 4)
    sent = method.end_stage(Stage("train", {}, 1), {**theta, "noise": noise})
    assert sent["drawn"].tolist() == [[2, 4]] * 4
    assert not sent["fresh"].any()


def test_draws_depend_on_the_seed_and_on_nothing_else() -> None:
    def drawn(seed: int, stack: int) -> list[list[int]]:
        federation = toy_federation(FedMGP, seed=seed, stack=stack, participation=1.0)
        state = federation.start()
        federation.step(state)
        return [state.personal[client]["drawn"].tolist() for client in ALL]

    assert drawn(0, 4) == drawn(0, 1) != drawn(1, 4)
    assert len({tuple(positions) for positions in drawn(0, 4)}) > 1  # clients draw apart


@pytest.mark.parametrize(("weights", "shares"), [("uniform", (1 / 2, 1 / 2)), ("protocol", (13 / 34, 21 / 34))])
def test_slots_are_means_of_what_was_drawn_in_the_order_of_the_draw(weights: str, shares: tuple[float, float]) -> None:
    federation, method, state = after(0, slot_weights=weights)
    federation.step(state, (0, 2))
    groups = {client: state.personal[client] for client in (0, 2)}
    expected = sum(share * groups[c]["text"][groups[c]["drawn"]] for c, share in zip((0, 2), shares, strict=True))
    torch.testing.assert_close(state.server["slots.text"], torch.as_tensor(expected))
    _, theta = federation.theta(state, (0,))
    held, drawn = method.held(theta, "text")[0], theta["drawn"][0]
    assert torch.equal(held[drawn], state.server["slots.text"])


def test_groups_that_were_not_drawn_and_clients_that_were_not_there_stay_as_they_are() -> None:
    federation, method, state = after(1)
    before = {client: {k: v.clone() for k, v in state.personal[client].items()} for client in ALL}
    federation.step(state, (1,))
    for client in (0, 2, 3):
        assert all(torch.equal(before[client][k], v) for k, v in state.personal[client].items())
    personal = state.personal[1]
    _, theta = federation.theta(state, (1,))
    kept = [position for position in range(5) if position not in personal["drawn"]]
    for kind in KINDS:
        assert torch.equal(method.held(theta, kind)[0][kept], personal[kind][kept])


def test_a_visit_goes_on_with_what_came_back() -> None:
    """Slots that were sent and averaged train on; the positions they replaced are not trained behind them."""
    method, theta, batch = build(1)
    leaves = {name: theta[name].clone().requires_grad_() for name in method.rates()}
    grads = dict(zip(leaves, torch.autograd.grad(method.loss({**theta, **leaves}, batch).sum(), list(leaves.values())), strict=True))  # fmt: skip  # noqa: E501
    for client in ALL:
        moved = grads["text"][client].flatten(1).any(1)
        assert not moved[theta["drawn"][client]].any()
        assert int(moved.sum()) == 3
    assert grads["slots.text"].flatten(2).any(2).all()


def test_what_travels_is_two_groups() -> None:
    federation, method, state = after(0)
    log = federation.step(state)
    assert log.floats_down == log.floats_up == 4 * 2 * (2 * 16 + 2 * 32) == 4 * floats_sent(method)[0]


def test_groups_begin_at_words_and_differ() -> None:
    method, theta, batch = build()
    words = method.backbone.text.context_of("a photo")
    assert float((theta["text"] - words).abs().max()) < 0.06
    assert float((theta["text"][0, 0] - theta["text"][0, 1]).abs().max()) > 1e-3
    fixed = method.backbone.text.tokenise([f"X X of a latin small letter {name}." for name in "abcd"])
    assert torch.equal(method.prompts.ids, fixed.ids)
    assert method.prompts.length == 2
    assert bool(method.loss(theta, replace(batch, start={})).isfinite().all())


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="exchanged = 3 of groups = 2"):
        toy_federation(FedMGP, {"groups": 2, "exchanged": 3})
    with pytest.raises(UserError, match="length = 9, but 'a photo of a' has fewer words"):
        toy_federation(FedMGP, {"length": 9}).start()
