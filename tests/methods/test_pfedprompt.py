from dataclasses import replace
from typing import Any

import pytest
import torch
from support.payloads import floats_sent
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.harness.conformance.lab import ALL, after_rounds, first_rows, same_bits
from fedprompt.harness.conformance.toy import TRAIN_SIZES
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.methods.pfedprompt import PFedPrompt, recall
from fedprompt.methods.promptfl import PromptFL


def after(rounds: int, **params: Any) -> tuple[Federation, FederationState, Tensor, Any]:
    """The toy, and what all clients score of their first test images."""
    federation, state = after_rounds(PFedPrompt, params, rounds)
    _, theta = federation.theta(state, ALL)
    batch = first_rows(federation, ALL, [4] * 4, "evaluate", theta)
    return federation, state, federation.method.predict(theta, batch), batch


def memory(rows: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    images, keys = (F.normalize(torch.randn(1, n, 24, generator=rng), dim=-1) for n in (3, rows))
    return images, keys, F.one_hot(torch.tensor([[0, 1, 1, 3, 3, 3][:rows]]), 4).float()


def test_training_is_promptfls() -> None:
    _, state, _, _ = after(2)
    _, expected = after_rounds(PromptFL, {}, 2)
    same_bits(expected.server, state.server, "pFedPrompt")


def test_without_weight_the_memory_changes_nothing() -> None:
    _, state, scores, batch = after(1, alpha=0.0)
    plain = after_rounds(PromptFL, {}, 1)[0].method
    assert torch.equal(scores, plain.predict({"context": state.server["context"].expand(4, -1, -1)}, batch))


def test_the_memory_is_the_clients_own_training_images() -> None:
    federation, _, scores, batch = after(1, alpha=2.0, beta=3.0)
    method: Any = federation.method
    plain = method.cosine_logits(method.image_features(batch), batch.start["class features"])
    for client, size in enumerate(TRAIN_SIZES):
        own = federation.data.batch((client,), "train", [torch.arange(size)], [])
        images, keys = method.image_features(batch)[client : client + 1], method.image_features(own)
        expected = 2 * recall(images, keys, F.one_hot(own.labels, 4).float(), 3.0)
        torch.testing.assert_close(scores[client] - plain[client], expected[0], atol=1e-4, rtol=1e-5)


def test_the_order_of_memories_does_not_matter() -> None:
    images, keys, values = memory()
    turned = recall(images, keys.flip(1), values.flip(1), 5.5)
    torch.testing.assert_close(recall(images, keys, values, 5.5), turned)


def test_a_class_without_memories_gets_nothing() -> None:
    images, keys, values = memory()
    added = recall(images, keys, values, 5.5)
    assert added[..., 2].eq(0).all()
    assert added[..., [0, 1, 3]].gt(0).all()


def test_an_image_that_is_remembered_counts_in_full() -> None:
    _, keys, values = memory(1)
    torch.testing.assert_close(recall(keys, keys, values, 5.5), values)


def test_remembering_twice_counts_double_unless_classes_are_normalised() -> None:
    images, keys, values = memory()
    twice = recall(images, torch.cat([keys, keys], 1), torch.cat([values, values], 1), 5.5)
    torch.testing.assert_close(twice, 2 * recall(images, keys, values, 5.5))


@pytest.mark.parametrize("norm", ["none", "per_class"])
def test_normalised_classes_weigh_alike(norm: str) -> None:
    federation, _, scores, batch = after(1, memory_norm=norm, beta=0.0)
    method: Any = federation.method
    added = scores - method.cosine_logits(method.image_features(batch), batch.start["class features"])
    counts = federation.method.task.train_counts
    counts = counts.clamp(max=1) if norm == "per_class" else counts
    torch.testing.assert_close(added, counts[:, None].expand_as(added).float(), atol=1e-4, rtol=0)


def test_the_memory_is_neither_sent_nor_stored() -> None:
    federation, state, _, _ = after(2)
    assert set(state.server) == {"context"}
    assert all(not kept for kept in state.personal.values())
    assert floats_sent(federation.method) == (256, 256)


def test_an_unseen_client_remembers_without_training() -> None:
    federation, state, _, _ = after(1)
    _, theta = federation.theta(state, (3,), unseen=True)
    batch = first_rows(federation, (3,), (4,), "evaluate", theta)
    assert int(batch.start["values"].sum()) == TRAIN_SIZES[3]
    assert hooks.unseen_stages(federation.method, 5) == []


def test_nobody_remembers_classes_that_nobody_trained_on() -> None:
    federation, state, _, _ = after(1)
    method: Any = federation.method
    novel = PFedPrompt(method.params, method.backbone, replace(method.task, train_counts=torch.zeros(4, 4)))
    _, theta = federation.theta(state, ALL)
    constants = hooks.begin_evaluation(novel, theta, federation.data.ordered(ALL, "train", 8))
    batch = replace(first_rows(federation, ALL, [4] * 4, "evaluate", theta), start=constants)
    assert torch.equal(novel.predict(theta, batch), PromptFL.predict(novel, theta, batch))
