from typing import Any

import pytest
import torch
from support.payloads import floats_sent
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.harness.conformance.lab import ALL, first_rows
from fedprompt.harness.conformance.toy import CLASS_NAMES, toy_clip, toy_federation
from fedprompt.harness.federation.rounds import Federation
from fedprompt.methods import Batch, State
from fedprompt.methods._outside_transport import exchange, is_heavy, unbalanced_plan
from fedprompt.methods._outside_words import ADJECTIVES, NOUNS, far_words
from fedprompt.methods._shifts import ascend, mean_length, soft_maximum
from fedprompt.methods.focoop import FOCoOp
from fedprompt.methods.promptfl import PromptFL

CLASSES = len(CLASS_NAMES)


def federation_of(**params: Any) -> tuple[Federation, FOCoOp]:
    federation = toy_federation(FOCoOp, {"outside": 6, "length": 4, **params})
    assert isinstance(federation.method, FOCoOp)
    return federation, federation.method


def build(**params: Any) -> tuple[FOCoOp, State, Batch]:
    federation, method = federation_of(**params)
    _, theta = federation.theta(federation.start(), ALL)
    return method, theta, first_rows(federation, ALL, [3] * 4, "train", theta)


def gradients(method: FOCoOp, theta: State, batch: Batch, *names: str) -> tuple[Tensor, ...]:
    leaves = {name: theta[name].clone().requires_grad_() for name in names}
    return torch.autograd.grad(method.loss({**theta, **leaves}, batch).sum(), list(leaves.values()))


# -- the client -------------------------------------------------------------------------------------------------------


def test_without_outside_prompts_and_private_contexts_it_is_promptfl_with_a_context_per_class() -> None:
    method, theta, batch = build(outside=0, share=1.0, robust=False)
    promptfl = toy_federation(PromptFL, {"length": 4}).method
    expected = torch.stack(
        [promptfl.predict({"context": theta["context"][:, c]}, batch)[..., c] for c in range(CLASSES)], dim=-1
    )
    torch.testing.assert_close(method.predict(theta, batch), expected)
    cross_entropy = F.cross_entropy(expected.mT, batch.labels, reduction="none").mean(1)
    torch.testing.assert_close(method.loss(theta, batch), cross_entropy)


def test_without_a_share_the_shared_contexts_have_no_gradient() -> None:
    shared, own, outside = gradients(*build(share=0.0), "context", "own", "outside")
    assert not shared.any()
    assert own.any()
    assert outside.any()


def test_predictions_are_about_classes_only() -> None:
    method, theta, batch = build()
    assert method.predict(theta, batch).shape == (4, 3, CLASSES)
    moved = {**theta, "outside": theta["outside"] + 1}
    assert torch.equal(method.predict(moved, batch), method.predict(theta, batch))
    assert not torch.equal(method.loss(moved, batch), method.loss(theta, batch))


def test_ascent_raises_what_it_ascends() -> None:
    method, theta, batch = build(radius=0.02)
    images, inside, outside = method.image_features(batch), method.class_features(theta), method.outside_features(theta)
    penalty = method.penalty(theta)
    first, second = method.worst_shifts(images, inside, outside, batch, penalty)

    def worth(shift: Tensor, beyond: Tensor) -> Tensor:
        return batch.mean(method.errors(images, inside + shift, outside + beyond, batch, 1))

    nothing = torch.zeros_like(outside)
    entropy = batch.mean(method.errors(images, inside, outside, batch, 0))
    raised = batch.mean(method.errors(images, inside + first, outside, batch, 0))
    assert bool((raised > entropy).all())
    assert bool((worth(first, second) > worth(first, nothing)).all())
    assert float(mean_length(first).max()) <= 4 * 0.02 + 1e-6


def test_ascent_climbs_a_slope_by_its_steps() -> None:
    slope = torch.tensor([[[3.0, 4.0]]])
    shift = ascend(lambda x: (x * slope).sum((1, 2)), torch.zeros(1, 1, 2), 0.1)
    torch.testing.assert_close(shift, torch.tensor([[[0.24, 0.32]]]))
    assert not shift.requires_grad


def test_the_loss_is_a_soft_maximum_over_real_images() -> None:
    _, _, batch = build()
    errors = torch.tensor([[1.0, 2.0, 5.0]] * 4)
    torch.testing.assert_close(soft_maximum(errors, batch, torch.full((4,), 0.01)), torch.full((4,), 5.0))
    torch.testing.assert_close(soft_maximum(errors, batch, torch.ones(4)), errors.logsumexp(1))


def test_the_penalty_falls_and_stays_above_its_floor() -> None:
    """At 0 the published loss is 0 * (x / 0)."""
    method, theta, batch = build()
    assert method.penalty(theta).tolist() == [10.0] * 4
    late = {**theta, "steps": torch.full((4, 1), 1e6)}
    assert method.penalty(late).tolist() == [pytest.approx(0.1)] * 4
    assert bool(method.loss(late, batch).isfinite().all())
    assert method.observe(theta, batch)["steps"].tolist() == [[1.0]] * 4


# -- words ------------------------------------------------------------------------------------------------------------


def test_words_are_the_farthest_of_their_kind() -> None:
    clip = toy_clip()
    words = far_words(clip, CLASS_NAMES, 6, 4)
    assert len(set(words)) == 6
    fitting = [word for word in NOUNS if len(clip.text.tokenizer(f"X X X X {word}.")) <= clip.text.context_length]
    texts = clip.template_features(fitting, ["The nice {}."])
    nearness = torch.quantile(texts @ clip.template_features(CLASS_NAMES).mT, 0.95, dim=1)
    nouns = [word for word in words if word in fitting]
    assert set(nouns) == {fitting[place] for place in nearness.argsort()[: len(nouns)].tolist()}
    assert 0 < len(nouns) < 6


def test_lists_have_no_word_twice_and_classes_are_no_words() -> None:
    assert len({*NOUNS, *ADJECTIVES}) == len(NOUNS) + len(ADJECTIVES)
    assert "salt" not in far_words(toy_clip(), ("salt", "dog"), 1000, 4)


# -- the server -------------------------------------------------------------------------------------------------------


def test_transport_that_may_give_way_moves_less_over_longer_ways() -> None:
    rows, columns = torch.tensor([[0.0], [1.0], [9.0]]).double(), torch.tensor([[0.0], [1.0]]).double()
    plan = unbalanced_plan(rows, columns)
    mass = plan.sum(1)
    assert float(mass[2]) < float(mass[0]) / 10
    assert float(plan[0, 0]) > float(plan[0, 1])
    assert is_heavy(mass).tolist() == [True, True, False]


def test_class_like_prompts_enter_the_classes_and_leave_the_others() -> None:
    rng = torch.Generator().manual_seed(0)
    classes = torch.randn(3, 8, generator=rng)
    far = 4 * torch.randn(4, 8, generator=rng) + 20
    planted = classes[[0, 2]] + 0.01
    _, kept = exchange(classes, torch.cat([planted, far]), 4)
    assert {tuple(row.tolist()) for row in kept} == {tuple(row.tolist()) for row in far}


def test_a_class_stays_where_it_is_if_what_enters_equals_it() -> None:
    """The published code does not divide by the mass that was moved, and halves the contexts."""
    classes = torch.full((1, 8), 3.0)
    mixed, _ = exchange(classes, torch.cat([classes, classes, torch.full((3, 8), 50.0)]), 3)
    torch.testing.assert_close(mixed, classes)


@pytest.mark.parametrize("count", [1, 4, 7])
def test_there_are_always_as_many_outside_prompts(count: int) -> None:
    rng = torch.Generator().manual_seed(0)
    _, kept = exchange(torch.randn(2, 8, generator=rng), torch.randn(4, 8, generator=rng), count)
    assert kept.shape == (count, 8)


def test_transport_is_an_option_of_the_server() -> None:
    states = []
    for transport in (False, True):
        federation, _ = federation_of(transport=transport)
        state = federation.start()
        federation.step(state)
        states.append(state.server)
    assert {name: tensor.shape for name, tensor in states[0].items()} == {
        name: tensor.shape for name, tensor in states[1].items()
    }
    assert not torch.equal(states[0]["outside"], states[1]["outside"])


def test_private_contexts_stay() -> None:
    federation, method = federation_of()
    received, theta = federation.theta(federation.start(), ALL)
    assert sorted(method.upload(theta, received)) == ["context", "outside"]
    assert floats_sent(method) == ((CLASSES + 6) * 4 * 16,) * 2
