from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.lab import ALL, after_rounds, first_rows, watch
from fedprompt.harness.conformance.toy import TRAIN_SIZES, toy_clip, toy_federation
from fedprompt.methods import State
from fedprompt.methods._attention import attend
from fedprompt.methods.fedmvp import FedMVP

EVERY = torch.ones(4, 4, dtype=torch.bool)


def build(rounds: int = 0, **params: Any) -> tuple[FedMVP, State, Any]:
    federation, state = after_rounds(FedMVP, params, rounds)
    assert isinstance(federation.method, FedMVP)
    _, theta = federation.theta(state, ALL)
    return federation.method, theta, first_rows(federation, ALL, [4, 2, 4, 3], "train", theta)


def likeness(method: FedMVP, theta: State, batch: Any) -> Tensor:
    """The cosine of prompted and frozen features, the mean over each client's images."""
    images = method.prompted_images(theta, batch, EVERY)
    return batch.mean((images * method.image_features(batch)).sum(-1))


def test_prompts_are_means_over_patches_of_what_attention_answers() -> None:
    method, theta, batch = build()
    own = {name: tensor[1:2] for name, tensor in theta.items()}
    patches = method.backbone.embed(batch.images)[4:6, 1:]  # of client 1
    texts = method.texts @ own["map.weight"][0].T + own["map.bias"][0]
    query, keys = F.layer_norm(patches, (32,)), F.layer_norm(texts, (32,))[None]
    answer = attend(own, "attention", query.flatten(0, 1)[None], keys, 4, values=texts[None])[0]
    value, gate = (F.layer_norm(answer, (32,)) @ own["wide.weight"][0].T + own["wide.bias"][0]).chunk(2, -1)
    answer = answer + (value * F.gelu(gate)) @ own["narrow.weight"][0].T + own["narrow.bias"][0]
    expected = answer.view(2, 4, 4, 32).mean(2)  # 16 patches to 4 rows
    torch.testing.assert_close(method.visual_prompts(theta, batch, EVERY)[4:6], expected, atol=1e-5, rtol=1e-4)


def test_prompts_are_added_and_the_class_token_is_still_what_is_read() -> None:
    method, theta, batch = build()
    seen = []
    hook = method.backbone.vit.blocks[0].norm1.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[1]))
    features = method.prompted_images(theta, batch, EVERY)
    hook.remove()
    assert seen == [17 + 4]
    prompts = method.visual_prompts(theta, batch, EVERY)
    tokens = method.backbone.embed(batch.images)
    tokens = torch.cat([tokens, prompts], dim=1)  # behind the patches, as in the public code
    for block in method.backbone.vit.blocks:
        tokens = block(tokens)
    expected = method.backbone.project(method.backbone.vit.norm(tokens)[:, 0])
    torch.testing.assert_close(batch.pack(features), expected, atol=1e-5, rtol=1e-4)


def test_each_image_has_its_own_prompt() -> None:
    method, theta, batch = build()
    theta["attention.weight"] = 10 * theta["attention.weight"]  # the toy's classes are much alike
    prompts = method.visual_prompts(theta, batch, EVERY)
    assert float((prompts[0] - prompts[1]).abs().max()) > 1e-3


def test_a_client_is_prompted_by_its_own_classes_in_training() -> None:
    method, theta, batch = build()
    few = torch.tensor([[True, True, False, False]] * 4)
    one, other = (method.visual_prompts(theta, batch, classes) for classes in (few, EVERY))
    assert float((one - other).abs().max()) > 1e-5
    method.task = replace(method.task, train_counts=few.long())
    batch = replace(batch, given_labels=batch.labels % 2)
    images = method.prompted_images(theta, batch, few)
    logits = method.cosine_logits(images, method.class_features(theta))[..., :2]
    pull = 10 * (1 - batch.mean((images * method.image_features(batch)).sum(-1)))
    for client, size in enumerate(batch.sizes):
        expected = F.cross_entropy(logits[client, :size], batch.labels[client, :size]) + pull[client]
        torch.testing.assert_close(method.loss(theta, batch)[client], expected, atol=1e-4, rtol=1e-4)


def test_consistency_keeps_features_near_the_frozen_ones() -> None:
    near = {}
    for weight in (0.0, 1000.0):
        method, theta, batch = build(5, consistency=weight, lr=1e-3, label_space="all")
        near[weight] = float(likeness(method, theta, batch).mean())
    assert near[1000.0] > near[0.0]
    assert near[1000.0] > 0.99


def test_scores_belong_to_the_classes_in_their_order() -> None:
    method, theta, batch = build()
    order = [2, 0, 3, 1]
    names = tuple(method.task.class_names[i] for i in order)
    shuffled = FedMVP(method.params, method.backbone, replace(method.task, class_names=names))
    torch.testing.assert_close(
        shuffled.predict(theta, batch), method.predict(theta, batch)[..., order], atol=1e-3, rtol=1e-4
    )


def test_every_batch_is_a_step_and_no_text_is_encoded_in_it() -> None:
    federation = toy_federation(FedMVP, participation=1.0, epochs=2)
    state = federation.start()
    found: list[Tensor] = []  # a bias of the client with most images, as each batch finds it
    watch(federation.method, "loss", lambda args, _: found.append(args[0]["map.bias"][2].detach()))
    encoded = []
    federation.method.backbone.text.register_forward_hook(lambda *_: encoded.append(1))  # type: ignore[union-attr]
    federation.step(state)
    assert len(found) == 2 * -(-TRAIN_SIZES[2] // 8)
    assert all(not torch.equal(before, later) for before, later in pairwise(found))
    assert encoded == []  # once for all, before the first


def test_the_tower_is_left_as_it_was() -> None:
    method, theta, batch = build()
    method.prompted_images(theta, batch, EVERY)
    assert torch.equal(method.backbone.cls(batch.images), toy_clip().cls(batch.images))


def test_heads_must_fit() -> None:
    with pytest.raises(UserError, match="heads = 3 does not divide the image tower's 32"):
        toy_federation(FedMVP, {"heads": 3})
