from typing import Any

import pytest
import torch
from support.payloads import floats_sent
from torch import Tensor

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.lab import ALL, after_rounds, first_rows
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.methods import State
from fedprompt.methods.pfedmma import PFedMMA, with_gradient_times
from fedprompt.methods.zs_clip import ZsClip


def build(rounds: int = 0, **params: Any) -> tuple[PFedMMA, State, Any]:
    federation, state = after_rounds(PFedMMA, params, rounds)
    assert isinstance(federation.method, PFedMMA)
    _, theta = federation.theta(state, ALL)
    return federation.method, theta, first_rows(federation, ALL, [4, 2, 4, 3], "train", theta)


def gradients(method: PFedMMA, theta: State, loss: Any) -> State:
    leaves = {name: theta[name].clone().requires_grad_() for name in method.rates()}
    grads = torch.autograd.grad(loss({**theta, **leaves}).sum(), list(leaves.values()), allow_unused=True)
    return {name: grad for name, grad in zip(leaves, grads, strict=True) if grad is not None}


def test_adapters_that_add_nothing_are_zero_shot() -> None:
    method, theta, batch = build(scale=1.0)
    silent = {name: torch.zeros_like(x) if ".up." in name else x for name, x in theta.items()}
    zero_shot = toy_federation(ZsClip)
    expected = zero_shot.method.predict({}, first_rows(zero_shot, ALL, [4, 2, 4, 3], "train", {}))
    scores = method.predict(silent, batch)
    torch.testing.assert_close(scores[batch.mask], expected[batch.mask], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(method.predict(theta, batch)[batch.mask], expected[batch.mask], atol=1e-2)


def by_hand(method: PFedMMA, theta: State, client: int, tower: str, block: int, x: Tensor) -> Tensor:
    """Block and adapter by their definition, for one client."""
    adapted = theta["shared.bias"].shape[1]
    blocks = method.backbone.text.blocks if tower == "text" else method.backbone.vit.blocks
    layer, module = block - (len(blocks) - adapted), blocks[block]
    if layer < 0:
        return module(x)

    def mapped(name: str, rows: Tensor) -> Tensor:
        return rows @ theta[f"{name}.weight"][client, layer].T + theta[f"{name}.bias"][client, layer]

    inner = torch.relu(mapped("shared", torch.relu(mapped(f"{tower}.down", module.norm1(x)))))
    return module(x) + method.params.scale * mapped(f"{tower}.up", inner)


def test_image_adapters_stand_beside_the_last_blocks() -> None:
    method, theta, batch = build(1, scale=0.5)
    assert method.adapted == 1  # two thirds of the text tower's two blocks
    method, theta, batch = build(1, scale=0.5, blocks=2)
    tokens = method.backbone.embed(batch.images)[4:6]  # the images of client 1
    for block in range(3):
        tokens = by_hand(method, theta, 1, "image", block, tokens)
    expected = method.backbone.project(method.backbone.vit.norm(tokens)[:, 0])
    torch.testing.assert_close(method.adapted_images(theta, batch)[1, :2], expected, atol=1e-5, rtol=1e-4)


def test_text_adapters_stand_beside_the_last_blocks() -> None:
    method, theta, _ = build(1, scale=0.5, blocks=2)
    text, features = method.backbone.text, method.class_features(theta)
    for client in (0, 3):
        for place, end in enumerate(method.prompts.ends.tolist()):
            tokens = (text.embedding(method.prompts.ids) + text.positions[: method.prompts.ids.shape[1]])[place]
            tokens = tokens[None, : end + 1]
            mask = torch.ones(end + 1, end + 1, dtype=torch.bool).tril()
            for index, module in enumerate(text.blocks):
                normed = module.norm1(tokens)
                query, key, value = module.attn.qkv(normed).view(1, end + 1, 3, 2, 8).permute(2, 0, 3, 1, 4)
                attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
                middle = tokens + module.attn.proj(attended.transpose(1, 2).flatten(2))
                inner = normed
                for name in ("text.down", "shared"):
                    inner = torch.relu(
                        inner @ theta[f"{name}.weight"][client, index].T + theta[f"{name}.bias"][client, index]
                    )
                added = inner @ theta["text.up.weight"][client, index].T + theta["text.up.bias"][client, index]
                tokens = middle + module.mlp(module.norm2(middle)) + 0.5 * added
            expected = torch.nn.functional.normalize(text.projection(text.norm(tokens[0, -1])), dim=-1)
            torch.testing.assert_close(features[client, place], expected, atol=1e-5, rtol=1e-4)


def test_the_meeting_layer_learns_from_both_towers() -> None:
    method, theta, batch = build(1)
    images, classes = method.adapted_images(theta, batch), method.class_features(theta)

    def both(held: State) -> Tensor:
        return method.cosine_logits(method.adapted_images(held, batch), method.class_features(held)).square()

    def only_text(held: State) -> Tensor:
        return method.cosine_logits(images, method.class_features(held)).square()

    def only_images(held: State) -> Tensor:
        return method.cosine_logits(method.adapted_images(held, batch), classes).square()

    total, text, image = (gradients(method, theta, path)["shared.weight"] for path in (both, only_text, only_images))
    assert text.any()
    assert image.any()
    torch.testing.assert_close(total, text + image, atol=1e-3, rtol=1e-3)


def test_gradients_of_adapters_do_not_depend_on_beta() -> None:
    grads = {}
    for scale in (1e-4, 1e-5):
        method, theta, batch = build(scale=scale)
        grads[scale] = gradients(method, theta, lambda held, m=method, b=batch: m.loss(held, b))
    for name in ("text.up.weight", "image.up.weight", "shared.weight", "text.down.weight"):
        one, other = grads[1e-4][name], grads[1e-5][name]
        assert float((one - other).norm()) < 0.05 * float(one.norm())


def test_towards_earlier_blocks_the_gradient_is_damped_by_beta() -> None:
    slopes = {}
    for scale in (1e-2, 1e-3):
        method, theta, _ = build(scale=scale)
        inputs = torch.randn(4, 3, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
        (slopes[scale],) = torch.autograd.grad(method.added(theta, "text", 1, inputs).sum(), inputs)
    torch.testing.assert_close(slopes[1e-2], 10 * slopes[1e-3], atol=1e-5, rtol=1e-3)


def test_a_multiplied_gradient_leaves_the_value_as_it_is() -> None:
    x = torch.tensor([0.1, 3.3, -7.7], requires_grad=True)
    y = with_gradient_times(1000, x)
    assert torch.equal(y, x)
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [1000] * 3


def test_clients_with_their_own_adapters_have_their_own_texts() -> None:
    """Text features computed for the first client and kept would score everybody with its adapters."""
    method, theta, _ = build(1, scale=0.5)
    theta["text.down.weight"] = theta["text.down.weight"] * torch.tensor([1.0, 2.0, -1.0, 0.5]).view(4, 1, 1, 1)
    features = method.class_features(theta)
    assert all(float((features[i] - features[j]).abs().max()) > 1e-3 for i in ALL for j in ALL if i < j)
    constants = [
        method.begin_evaluation(held, [])["class features"]
        for held in (theta, {k: v.flip(0) for k, v in theta.items()})
    ]
    torch.testing.assert_close(constants[0], constants[1].flip(0))


def test_only_the_meeting_layer_travels() -> None:
    federation, state = after_rounds(PFedMMA, {"blocks": 2, "bottleneck": 5}, 1)
    assert set(state.server) == {"shared.weight", "shared.bias"}
    assert floats_sent(federation.method) == (2 * (25 + 5),) * 2
    assert all(name.split(".")[0] in ("text", "image") for name in state.personal[0])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="blocks = 3, but the shallower tower has 2"):
        toy_federation(PFedMMA, {"blocks": 3})
    with pytest.raises(UserError, match="scale = 0"):
        toy_federation(PFedMMA, {"scale": 0})
