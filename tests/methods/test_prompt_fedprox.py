import torch

from fedprompt.harness.conformance.lab import ALL, first_rows, flat, same_bits
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.rounds import FederationState
from fedprompt.harness.federation.training import train
from fedprompt.methods.prompt_fedprox import PromptFedProx
from fedprompt.methods.promptfl import PromptFL


def gradient(mu: float, moved: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the loss with the context ``moved`` away from what was sent, and how far it was moved."""
    federation = toy_federation(PromptFedProx, {"mu": mu})
    start = federation.theta(federation.start(), ALL)[1]
    drift = moved * torch.randn(start["context"].shape, generator=torch.Generator().manual_seed(0))
    leaf = (start["context"] + drift).requires_grad_()
    loss = federation.method.loss({"context": leaf}, first_rows(federation, ALL, [5] * 4, "train", start))
    return torch.autograd.grad(loss.sum(), leaf)[0], drift


def trained(method: type, rounds: int = 2, lr: float = 0.002, **params: object) -> FederationState:
    federation = toy_federation(method, {"lr": lr, **params}, participation=1.0)
    state = federation.start()
    for _ in range(rounds):
        federation.step(state)
    return state


def test_the_penalty_has_the_gradient_of_its_formula() -> None:
    with_penalty, drift = gradient(0.7, 0.1)
    without, _ = gradient(0.0, 0.1)
    torch.testing.assert_close(with_penalty - without, 0.7 * drift, atol=1e-6, rtol=1e-5)


def test_the_penalty_is_nothing_at_the_first_step() -> None:
    assert torch.equal(gradient(0.7, 0.0)[0], gradient(0.0, 0.0)[0])


def test_without_the_penalty_it_is_promptfl_bit_for_bit() -> None:
    same_bits(flat(trained(PromptFL)), flat(trained(PromptFedProx, mu=0.0)), "mu = 0")


def test_a_strong_pull_keeps_the_context_near() -> None:
    lengths = []
    for mu in (0.0, 1000.0):
        federation = toy_federation(PromptFedProx, {"lr": 1e-4, "mu": mu})
        start = federation.theta(federation.start(), ALL)[1]
        stages = hooks.stages(federation.method, 5)
        after, _ = train(federation.method, start, stages, federation.data, ALL, federation.protocol, (0, 1))
        lengths.append(float((after["context"] - start["context"]).norm()))
    assert lengths[1] < 0.5 * lengths[0]


def test_what_the_server_sent_takes_no_gradient() -> None:
    federation = toy_federation(PromptFedProx)
    start = federation.theta(federation.start(), ALL)[1]
    stages = hooks.stages(federation.method, 1)
    sent = start["context"].clone()
    train(federation.method, start, stages, federation.data, ALL, federation.protocol, (0, 1))
    assert torch.equal(start["context"], sent)
    assert not start["context"].requires_grad
