import pytest
import torch
from support.payloads import floats_sent

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.lab import cloned, same_bits
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.rounds import FederationState
from fedprompt.harness.measuring.evaluation import adapt
from fedprompt.methods.coop import CoOp
from fedprompt.methods.prompt_fedper import PromptFedPer
from fedprompt.methods.promptfl import PromptFL


def trained(method: type, **params: object) -> FederationState:
    federation = toy_federation(method, params, participation=1.0)
    state = federation.start()
    for _ in range(2):
        federation.step(state)
    return state


def test_all_tokens_shared_is_promptfl() -> None:
    ours, theirs = trained(PromptFedPer, length=4, shared=4), trained(PromptFL, length=4)
    assert torch.equal(ours.server["shared"], theirs.server["context"])


def test_no_token_shared_is_local_training() -> None:
    ours, theirs = trained(PromptFedPer, length=4, shared=0), trained(CoOp, length=4)
    for client, tensors in theirs.personal.items():
        assert torch.equal(ours.personal[client]["private"], tensors["context"])


def test_private_tokens_rest_while_the_client_does() -> None:
    federation = toy_federation(PromptFedPer)
    state = federation.start()
    federation.step(state, (0, 1))
    before = cloned(state.personal[1])
    federation.step(state, (0, 2))
    same_bits(before, state.personal[1], "client 1, absent from the round")
    assert 3 not in state.personal


def test_half_of_the_tokens_travel() -> None:
    federation = toy_federation(PromptFedPer)
    state = federation.start()
    received = federation.theta(state, [0])[0]
    assert {name: tuple(tensor.shape) for name, tensor in received.items()} == {"shared": (1, 8, 16)}
    log = federation.step(state, [0])
    assert (log.floats_down, log.floats_up) == (8 * 16, 8 * 16) == floats_sent(federation.method)


def test_tokens_are_split_and_not_features() -> None:
    method = toy_federation(PromptFedPer).method
    theta = {"shared": torch.zeros(1, 8, 16), "private": torch.ones(1, 8, 16)}
    context = method.context(theta)  # type: ignore[attr-defined]
    assert torch.equal(context[0, :, 0], torch.tensor([0.0] * 8 + [1.0] * 8))


def test_a_never_sampled_client_fits_its_tokens_beside_the_frozen_shared_ones() -> None:
    federation = toy_federation(PromptFedPer)
    state = federation.start()
    federation.step(state, (0, 1))
    adapted = adapt(federation, state, [3], 2, unseen=True, shared=False)
    assert torch.equal(adapted["shared"][0], state.server["shared"])
    assert not torch.equal(adapted["private"][0], federation.personal(state, 3)["private"])


def test_more_shared_tokens_than_there_are_is_refused() -> None:
    with pytest.raises(UserError, match="shared = 5, but the context has 4 tokens"):
        toy_federation(PromptFedPer, {"length": 4, "shared": 5})
