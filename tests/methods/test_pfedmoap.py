from dataclasses import replace
from typing import Any

import pytest
import torch
from support.payloads import floats_sent
from torch import Tensor

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.lab import ALL, after_rounds, first_rows, same_bits
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.payload import traffic
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.harness.measuring.evaluation import adapt
from fedprompt.methods import State
from fedprompt.methods._attention import attention_init
from fedprompt.methods._experts import mix, nearest
from fedprompt.methods.pfedmoap import EXPERTS, GATE, PFedMoAP
from fedprompt.methods.promptfl import PromptFL


def after(rounds: int, **params: Any) -> tuple[Federation, PFedMoAP, FederationState]:
    federation, state = after_rounds(PFedMoAP, params, rounds)
    assert isinstance(federation.method, PFedMoAP)
    return federation, federation.method, state


def second_visit(**params: Any) -> tuple[PFedMoAP, State, Any]:
    """What all clients hold when their second visit begins, and their first images."""
    federation, method, state = after(1, **params)
    _, theta = federation.theta(state, ALL)
    return method, theta, first_rows(federation, ALL, [5] * 4, "train", theta)


def logits_of(method: PFedMoAP, theta: State, batch: Any, experts: Tensor | None = None) -> Tensor:
    features = batch.start[EXPERTS] if experts is None else experts
    return method.mixed_logits(theta, batch, method.encode(theta["context"]), features, theta["present"])


# -- the nearest experts ----------------------------------------------------------------------------------------------


def test_nearest_is_what_comparing_all_pairs_finds() -> None:
    rng = torch.Generator().manual_seed(0)
    pool = torch.randn(7, 3, 5, generator=rng)
    eligible = (torch.rand(7, 7, generator=rng) < 0.6) & ~torch.eye(7, dtype=torch.bool)
    experts, present = nearest(pool, pool, eligible, 3)
    for client in range(7):
        others = [other for other in range(7) if eligible[client, other]]
        ranked = sorted(others, key=lambda other: float((pool[client] - pool[other]).norm()))[:3]
        assert present[client].tolist() == [place < len(ranked) for place in range(3)]
        for place, other in enumerate(ranked):
            assert torch.equal(experts[client, place], pool[other])


def test_ties_go_to_the_first_client() -> None:
    pool = torch.stack([torch.zeros(2, 2), torch.ones(2, 2), -torch.ones(2, 2), torch.ones(2, 2)])
    experts, _ = nearest(pool[:1], pool, torch.tensor([[False, True, True, True]]), 2)
    assert torch.equal(experts[0], torch.stack([pool[1], pool[2]]))


def test_a_client_is_not_its_own_expert_and_never_sampled_clients_are_nobodys() -> None:
    federation, method, state = after(0)
    federation.step(state, (0, 1, 3))
    sent = hooks.download(method, state.server, ALL)
    assert sent["present"].sum(1).tolist() == [2, 2, 0, 2]  # client 2 is not known: it gets nobody, and is nobody's
    for client in (0, 1, 3):
        known = [state.server["pool"][other] for other in (0, 1, 3) if other != client]
        for expert in sent["experts"][client][sent["present"][client]]:
            assert any(torch.equal(expert, other) for other in known)


def test_experts_are_the_uploads_of_earlier_rounds() -> None:
    """Written at the end of a round: within it, nobody sees what a neighbour has just trained."""
    federation, method, state = after(1)
    federation.stack = 1
    pool = state.server["pool"].clone()
    (sent,) = hooks.download(method, state.server, [1])["experts"]
    federation.step(state, (0, 1))
    assert torch.equal(state.personal[1]["kept"], sent)  # although client 0 had trained before
    assert torch.equal(pool[[2, 3]], state.server["pool"][[2, 3]])
    assert not torch.equal(pool[0], state.server["pool"][0])
    assert not torch.equal(sent, hooks.download(method, state.server, [1])["experts"][0])


# -- the mixture ------------------------------------------------------------------------------------------------------


def test_the_order_of_experts_does_not_matter() -> None:
    method, theta, batch = second_visit()
    straight = logits_of(method, theta, batch)
    turned = logits_of(method, theta, batch, batch.start[EXPERTS].flip(1))
    torch.testing.assert_close(straight, turned, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("experts", [0, 9])
def test_without_experts_logits_are_plain(experts: int) -> None:
    federation, method, state = after(1 if experts == 0 else 0, experts=experts)
    _, theta = federation.theta(state, ALL)
    batch = first_rows(federation, ALL, [3] * 4, "train", theta)
    plain = method.cosine_logits(method.image_features(batch), method.encode(theta["context"]))
    assert torch.equal(logits_of(method, theta, batch), plain)


def test_a_missing_expert_is_not_a_zero_expert() -> None:
    method, theta, batch = second_visit()
    theta["present"] = torch.tensor([[True, False, False]] * 4)
    garbage = torch.full_like(batch.start[EXPERTS][:, 1:], 1e3)
    alone = logits_of(method, theta, batch, torch.cat([batch.start[EXPERTS][:, :1], garbage], 1))
    torch.testing.assert_close(logits_of(method, theta, batch), alone)


def test_the_mixture_is_multi_head_attention() -> None:
    rng = torch.Generator().manual_seed(1)
    gate = {name: tensor[None] for name, tensor in attention_init("gate", 24, rng).items()}
    query, features = torch.randn(1, 5, 24, generator=rng), torch.randn(1, 3, 4, 24, generator=rng)
    weight, bias = gate["gate.weight"][0], gate["gate.bias"][0]
    for label in range(4):
        rows = features[0, :, label][:, None]
        expected, _ = torch.nn.functional.multi_head_attention_forward(
            query[0][:, None], rows, rows, 24, 8, weight[:3].flatten(0, 1), bias[:3].flatten(), None, None, False, 0.0,
            weight[3], bias[3],
        )  # fmt: skip
        mixed = mix(gate, query, features, torch.ones(1, 3, dtype=torch.bool), heads=8, kappa=0)
        torch.testing.assert_close(mixed[0, :, label], expected[:, 0])


def test_experts_are_constants_and_the_gate_is_not() -> None:
    method, theta, batch = second_visit()
    assert not batch.start[EXPERTS].requires_grad
    leaves = {name: theta[name].clone().requires_grad_() for name in ("context", *GATE)}
    experts = theta["experts"].clone().requires_grad_()
    loss = method.loss({**theta, **leaves, "experts": experts}, batch).sum()
    grads = torch.autograd.grad(loss, [*leaves.values(), experts], allow_unused=True)
    assert grads[-1] is None
    assert all(grad is not None and grad.any() for grad in grads[:-1])


def test_a_large_lambda_leaves_the_decision_to_the_own_context() -> None:
    method, theta, batch = second_visit(local_weight=1e6)
    plain = method.cosine_logits(method.image_features(batch), method.encode(theta["context"]))
    assert torch.equal(logits_of(method, theta, batch).argmax(-1), plain.argmax(-1))


def test_lambda_zero_leaves_it_to_the_mixture() -> None:
    methods = {weight: second_visit(local_weight=weight) for weight in (0.0, 0.5)}
    mixture = logits_of(*methods[0.0])
    method, theta, batch = methods[0.5]
    plain = method.cosine_logits(method.image_features(batch), method.encode(theta["context"]))
    torch.testing.assert_close(logits_of(method, theta, batch), mixture + 0.5 * plain, atol=1e-4, rtol=1e-4)


def test_features_are_reduced_by_stride_or_by_means() -> None:
    features = torch.arange(24.0)
    assert after(0, gate_width=8)[1].reduce(features).tolist() == [0, 3, 6, 9, 12, 15, 18, 21]
    assert after(0, gate_width=8, pool="mean")[1].reduce(features).tolist() == [1, 4, 7, 10, 13, 16, 19, 22]


def test_a_gate_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UserError, match="gate_width = 9 must divide the 24 dimensions"):
        toy_federation(PFedMoAP, {"gate_width": 9})


def test_the_gate_of_the_paper_has_66048_parameters() -> None:
    gate = attention_init("gate", 128, torch.Generator())
    assert sum(tensor.numel() for tensor in gate.values()) == 66_048


# -- rounds -----------------------------------------------------------------------------------------------------------


def test_the_first_visit_is_promptfls() -> None:
    federation, _, state = after(1)
    _, expected = after_rounds(PromptFL, {}, 1)
    torch.testing.assert_close(state.server["context"], expected.server["context"])
    first = federation.method.init_personal(torch.Generator(), 0)
    assert set(first) == set(state.personal[0])


def test_a_gate_without_experts_does_not_move_at_all() -> None:
    """Not even by weight decay, in a first visit; nor does a never-sampled client find others' experts."""
    federation, state = after_rounds(PFedMoAP, {}, 0, weight_decay=0.1, stack=1)
    fresh = federation.personal(state, 0)
    federation.step(state, (0, 1))
    federation.step(state, (1, 2))
    for client, moves in ((0, False), (1, True), (2, False)):
        for name in GATE:
            assert torch.equal(state.personal[client][name], fresh[name]) is not moves


def test_gates_do_not_leak_between_clients() -> None:
    """A client's second visit uses its own gate, whoever was visited before it."""
    gates = []
    for neighbours in ((), (0, 3)):
        federation, _, state = after(1)
        federation.stack = 1
        federation.step(state, (*neighbours, 1))
        gates.append({name: state.personal[1][name] for name in GATE})
    same_bits(gates[0], gates[1], "client 1 after others")


def test_what_travels() -> None:
    federation, method, state = after(0)
    logs = [federation.step(state, cohort) for cohort in ((0, 1), (0, 1, 2), ALL)]
    context = 16 * 16
    assert logs[0].floats_down == 2 * context  # never-sampled clients
    assert logs[1].floats_down == (2 + 2 + 1) * context  # two that know each other, and a never-sampled client
    assert logs[2].floats_down == (3 + 3 + 3 + 1) * context
    assert [log.floats_up for log in logs] == [2 * context, 3 * context, 4 * context]
    assert floats_sent(method) == (4 * context, context)  # K is 9, but there are only three others
    assert traffic(method).first_down.floats == context


def test_a_client_is_evaluated_with_what_it_trained_last() -> None:
    """Its context, gate and experts: neither the new mean nor contexts it was never sent."""
    federation, method, state = after(2)
    _, theta = federation.theta(state, ALL)
    assert torch.equal(theta["own"], state.server["pool"])
    assert bool(theta["kept.present"].all())
    batch = first_rows(federation, ALL, [4] * 4, "evaluate", theta)
    scores = method.predict(theta, batch)
    elsewhere = {**theta, "context": theta["context"] + 1, "experts": theta["experts"] + 1}
    assert torch.equal(scores, method.predict(elsewhere, batch))


def test_a_never_sampled_client_predicts_with_the_mean() -> None:
    federation, method, state = after(0)
    federation.step(state, (0, 1, 2))
    _, theta = federation.theta(state, (3,))
    batch = first_rows(federation, (3,), (4,), "evaluate", theta)
    plain = method.cosine_logits(method.image_features(batch), method.encode(state.server["context"][None]))
    assert torch.equal(method.predict(theta, batch), plain)


def test_an_unseen_client_first_trains_alone_then_with_the_nearest_to_what_it_trained() -> None:
    federation, method, state = after(0)
    federation.step(state, (0, 1, 2))
    adapted = adapt(federation, state, (3,), 0, unseen=True)
    theta = federation.theta(state, (3,), unseen=True)[1]
    assert [stage.name for stage in hooks.unseen_stages(method, 5)] == ["plain", "gated"]
    assert sorted(adapted["kept"][0].flatten(1).sum(1).tolist()) == pytest.approx(
        sorted(state.server["pool"][:3].flatten(1).sum(1).tolist())
    )
    assert all(not torch.equal(adapted[name], theta[name]) for name in GATE)
    assert torch.equal(adapted["own"], adapted["context"])


def test_an_unseen_clients_first_half_does_not_look_at_experts() -> None:
    method, theta, batch = second_visit()
    plain = method.loss(theta, replace(batch, stage="plain"))
    assert torch.equal(plain, toy_federation(PromptFL).method.loss({"context": theta["context"]}, batch))
