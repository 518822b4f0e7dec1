import dataclasses
from typing import Any

import pytest
import torch

from fedprompt.harness.conformance.lab import ALL, after_rounds, cloned, close, first_rows, same_bits
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.payload import traffic
from fedprompt.methods import Batch, State
from fedprompt.methods._text import CLASSES
from fedprompt.methods.coop import CoOp
from fedprompt.methods.fedpurel import FedPuReL, entropy, equally_sharp
from fedprompt.methods.promptfl import PromptFL


def build(stage: str = "global", **params: Any) -> tuple[FedPuReL, State, Batch]:
    federation = toy_federation(FedPuReL, params)
    assert isinstance(federation.method, FedPuReL)
    _, theta = federation.theta(federation.start(), ALL)
    return federation.method, theta, first_rows(federation, ALL, [3] * 4, stage, theta)


def gradients(method: FedPuReL, theta: State, batch: Batch) -> dict[str, torch.Tensor | None]:
    leaves = {name: theta[name].clone().requires_grad_() for name in ("context", "residual")}
    found = torch.autograd.grad(method.loss(leaves, batch).sum(), list(leaves.values()), allow_unused=True)
    return dict(zip(leaves, found, strict=True))


def test_temperatures_give_both_predictions_the_mean_entropy() -> None:
    first, second = torch.randn(2, 40, 10, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    second = 0.2 * second
    wanted = (entropy(first) + entropy(second)) / 2
    heat, other = equally_sharp(first, second)
    torch.testing.assert_close(entropy(first / heat), wanted, atol=1e-3, rtol=0)
    torch.testing.assert_close(entropy(second / other), wanted, atol=1e-3, rtol=0)
    assert ((heat > 1) & (other < 1)).all()


def test_equal_entropies_need_no_temperature() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0]])
    heat, other = equally_sharp(logits, logits.flip(-1))
    assert float(heat) == pytest.approx(1, abs=1e-4)
    assert float(other) == pytest.approx(1, abs=1e-4)


def test_predictions_that_are_zero_shot_already_take_the_tasks_step() -> None:
    method, theta, batch = build()
    method.reference = method.encode(theta["context"])[0].detach()
    task, divergence = method.purified(theta, batch)
    torch.testing.assert_close(divergence, torch.zeros(4), atol=1e-6, rtol=0)
    plain = gradients(build(strength=0.0)[0], theta, batch)["context"]
    torch.testing.assert_close(gradients(method, theta, batch)["context"], plain)
    assert task.isfinite().all()


def test_each_stage_moves_its_own_context() -> None:
    _, theta, batch = build("global")
    in_global = gradients(build()[0], theta, batch)
    method, theta, batch = build("residual")
    in_residual = gradients(method, theta, batch)
    assert in_global["residual"] is None
    assert in_global["context"] is not None
    assert in_residual["context"] is None
    assert in_residual["residual"] is not None


def test_the_residual_is_fitted_to_the_context_that_was_received() -> None:
    federation = toy_federation(FedPuReL, participation=1.0)
    stages = [(stage.name, [*stage.rates]) for stage in hooks.stages(federation.method, 2)]
    assert stages == [("residual", ["residual"]), ("global", ["context"])]


def test_without_purification_the_server_learns_as_in_promptfl() -> None:
    """Its own epochs come second in a visit, so that batches differ; with one batch of everything they do not."""
    _, state = after_rounds(FedPuReL, {"strength": 0.0}, 2, batch_size=32)
    close(after_rounds(PromptFL, {"length": 4}, 2, batch_size=32)[1].server, state.server, "strength=0", 1e-5)


def test_a_residual_that_fits_alone_is_a_local_context() -> None:
    _, state = after_rounds(FedPuReL, {"alone": 1.0}, 2)
    _, local = after_rounds(CoOp, {"length": 4}, 2)
    for client in ALL:
        residual = {"context": state.personal[client]["residual"]}
        close(local.personal[client], residual, f"client {client}", 1e-5)


def test_clients_in_either_order_upload_the_same_and_all_of_them_move() -> None:
    """In the public code every second one trains at a rate of zero, with the momentum of the one before."""
    uploads = []
    for order in ((0, 1), (1, 0)):
        federation = toy_federation(FedPuReL, stack=1, epochs=1)
        state = federation.start()
        before = cloned(state.server)
        sent: State = {}
        aggregate = federation.method.aggregate

        def keep(server, stacks, weights, clients, sent=sent, aggregate=aggregate):  # type: ignore[no-untyped-def]
            sent.update({str(client): stacks["context"][place].clone() for place, client in enumerate(clients)})
            return aggregate(server, stacks, weights, clients)

        federation.method.aggregate = keep  # type: ignore[method-assign]
        federation.step(state, list(order))
        assert all(not torch.equal(each, before["context"]) for each in sent.values())
        uploads.append(dict(sorted(sent.items())))
    same_bits(uploads[0], uploads[1], "in the other order")


def test_a_residual_that_cannot_tell_classes_apart_changes_no_prediction() -> None:
    method, theta, batch = build("evaluate")
    texts = method.class_features(theta)
    texts[:, 1] = texts[:, 1, :1]  # all classes alike
    shared = method.cosine_logits(method.image_features(batch), texts[:, 0])
    batch = dataclasses.replace(batch, start={CLASSES: texts})
    assert torch.equal(method.predict(theta, batch).argmax(-1), shared.argmax(-1))


def test_one_context_travels() -> None:
    sent = traffic(toy_federation(FedPuReL).method)
    assert sent.down.floats == sent.up.floats == 4 * 16
