import torch

from fedprompt.harness.conformance.lab import ALL, cloned, first_rows, flat, same_bits
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.methods.coop import CoOp


def started(**protocol: object) -> tuple[Federation, FederationState]:
    federation = toy_federation(CoOp, participation=1.0, **protocol)
    return federation, federation.start()


def test_the_gradient_reaches_the_context_and_nothing_frozen() -> None:
    federation, state = started()
    theta = {name: tensor.requires_grad_() for name, tensor in federation.theta(state, ALL)[1].items()}
    federation.method.loss(theta, first_rows(federation, ALL, [5] * 4, "train", theta)).sum().backward()
    gradient = theta["context"].grad
    assert gradient is not None
    assert bool((gradient.flatten(1).norm(dim=1) > 0).all())
    assert [name for name, p in federation.method.backbone.named_parameters() if p.grad is not None] == []


def test_all_clients_start_from_one_draw() -> None:
    federation, state = started()
    context = federation.theta(state, ALL)[1]["context"]
    assert torch.equal(context, context[:1].expand_as(context))


def test_the_order_of_clients_does_not_matter() -> None:
    results = []
    for order in ((0, 1, 2, 3), (3, 1, 0, 2)):
        federation, state = started(stack=1)
        federation.step(state, order)
        results.append(flat(state))
    same_bits(*results, "in another order")


def test_the_loss_falls_within_twenty_steps() -> None:
    federation, state = started(epochs=1, batch_size=32)
    losses = [federation.step(state).loss for _ in range(20)]
    assert losses[-1] < losses[0] - 0.1


def test_training_one_client_leaves_the_others_alone() -> None:
    federation, state = started()
    federation.step(state, (0, 1))
    before = cloned(state.personal[1])
    federation.step(state, (0,))
    same_bits(before, state.personal[1], "client 1 while client 0 trains")


def test_a_budget_of_epochs_ends_learning() -> None:
    """The paper's 25 epochs, whatever the rounds."""
    federation = toy_federation(CoOp, {"budget": 4}, participation=1.0, epochs=2)
    state = federation.start()
    contexts = []
    for _ in range(4):
        federation.step(state)
        contexts.append(state.personal[0]["context"])
    assert not torch.equal(contexts[0], contexts[1])
    assert torch.equal(contexts[1], contexts[3])
    assert float(state.personal[0]["epochs"]) == 8
