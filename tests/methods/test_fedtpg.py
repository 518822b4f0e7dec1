from dataclasses import replace
from typing import Any

import pytest
import torch
from support.payloads import floats_sent
from torch import nn
from torch.nn import functional as F  # noqa: N812

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.lab import ALL, first_rows
from fedprompt.harness.conformance.toy import toy_clip, toy_federation
from fedprompt.methods import Method, State, Task
from fedprompt.methods._attention import multihead_init
from fedprompt.methods.fedmvp import FedMVP
from fedprompt.methods.fedtpg import FedTPG, FedTPGParams

EVERY = torch.ones(4, 4, dtype=torch.bool)


def build(**params: Any) -> tuple[FedTPG, State, Any]:
    federation = toy_federation(FedTPG, params)
    assert isinstance(federation.method, FedTPG)
    _, theta = federation.theta(federation.start(), ALL)
    return federation.method, theta, first_rows(federation, ALL, [5, 3, 5, 2], "train", theta)


def on(names: str, clip: FrozenCLIP | None = None) -> FedTPG:
    return FedTPG(FedTPGParams(), clip or toy_clip(), Task(tuple(names), torch.ones(4, len(names))))


def test_the_order_of_names_does_not_matter() -> None:
    _, theta, batch = build()
    straight, turned = on("abcd"), on("cadb")
    torch.testing.assert_close(straight.context(theta), turned.context(theta), atol=1e-5, rtol=1e-5)
    order = [2, 0, 3, 1]
    torch.testing.assert_close(
        straight.predict(theta, batch)[..., order], turned.predict(theta, batch), atol=1e-3, rtol=1e-4
    )


def test_the_context_depends_on_the_set_of_names() -> None:
    _, theta, _ = build()
    base, novel, more = (on(names).context(theta) for names in ("ab", "cd", "abc"))
    for one, other in ((base, novel), (base, more), (novel, more)):
        assert float((one - other).abs().max()) > 1e-4


def test_a_name_said_twice_counts_once() -> None:
    _, theta, _ = build()
    torch.testing.assert_close(on("abb").context(theta), on("ab").context(theta), atol=1e-5, rtol=1e-5)


def test_names_are_constants() -> None:
    method = build()[0]
    assert not method.names.requires_grad
    torch.testing.assert_close(method.names.norm(dim=-1), torch.ones(4))
    assert method.names.shape == (4, 24)


def test_the_generator_is_attention_and_a_gated_layer() -> None:
    method, theta, _ = build()
    own = {name: tensor[1] for name, tensor in theta.items()}

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, own[f"{name}.weight"], own[f"{name}.bias"])

    attention = nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        attention.in_proj_weight.copy_(own["attention.weight"][:3].flatten(0, 1))
        attention.in_proj_bias.copy_(own["attention.bias"][:3].flatten())
        attention.out_proj.weight.copy_(own["attention.weight"][3])
        attention.out_proj.bias.copy_(own["attention.bias"][3])
    names = F.layer_norm(linear("map", method.names), (16,))
    hidden = attention(F.layer_norm(own["tokens"], (16,))[None], names[None], names[None])[0][0]
    value, gate = linear("wide", F.layer_norm(hidden, (16,))).chunk(2, -1)
    expected = hidden + linear("narrow", value * F.gelu(gate))
    torch.testing.assert_close(method.context_of(theta, EVERY)[1], expected, atol=1e-5, rtol=1e-4)


def test_attention_begins_as_torch_begins_it() -> None:
    ours, torchs = multihead_init("a", 96, torch.Generator().manual_seed(0)), nn.MultiheadAttention(96, 4)
    assert not ours["a.bias"].any()
    assert not torchs.in_proj_bias.any()
    assert not torchs.out_proj.bias.any()
    for mine, reference in (
        (ours["a.weight"][:3].flatten(0, 1), torchs.in_proj_weight),
        (ours["a.weight"][3], torchs.out_proj.weight),
    ):
        torch.testing.assert_close(mine.abs().max(), reference.abs().max(), atol=0, rtol=0.01)
        torch.testing.assert_close(mine.std(), reference.std(), atol=0, rtol=0.03)


@pytest.mark.parametrize("method", [FedTPG, FedMVP])
def test_generators_begin_with_that_attention(method: type[Method]) -> None:
    server = toy_federation(method).start().server
    assert not server["attention.bias"].any()
    queries, answers = server["attention.weight"][0], server["attention.weight"][3]
    assert float(queries.abs().max()) > 1.1 * float(answers.abs().max())


def test_a_client_trains_on_its_own_classes_alone() -> None:
    method, theta, batch = build()
    own = torch.tensor([[True, True, False, False]] * 4)
    method.task = replace(method.task, train_counts=own.long())
    batch = replace(batch, given_labels=batch.labels % 2)
    features = method.encode(method.context_of(theta, own))
    logits = method.cosine_logits(method.image_features(batch), features)[..., :2]
    for client, size in enumerate(batch.sizes):
        expected = F.cross_entropy(logits[client, :size], batch.labels[client, :size])
        torch.testing.assert_close(method.loss(theta, batch)[client], expected, atol=1e-4, rtol=1e-4)


def test_padding_of_an_absent_class_does_not_spoil_the_loss() -> None:
    method, theta, batch = build()
    method.task = replace(method.task, train_counts=torch.tensor([[0, 1, 1, 1]] * 4))
    loss = method.loss(theta, replace(batch, given_labels=batch.labels.clamp(min=1) * batch.mask))
    assert bool(loss.isfinite().all())
    assert float(loss.max()) < 1e3


def test_all_classes_are_a_switch() -> None:
    method, theta, batch = build(label_space="all")
    logits = method.cosine_logits(method.image_features(batch), method.encode(method.context_of(theta, EVERY)))
    expected = F.cross_entropy(logits[0, :5], batch.labels[0, :5])
    torch.testing.assert_close(method.loss(theta, batch)[0], expected, atol=1e-4, rtol=1e-5)


def test_parameters_are_counted_by_the_formula() -> None:
    method, theta, _ = build()
    counted = sum(tensor[0].numel() for tensor in theta.values())
    assert counted == 4 * 16 + 16 * 16**2 + 19 * 16 + (24 * 16 + 16) == floats_sent(method)[0]


def test_heads_must_fit() -> None:
    with pytest.raises(UserError, match="heads = 3 does not divide the text tower's 16"):
        toy_federation(FedTPG, {"heads": 3})
