from typing import Any

import pytest
import torch

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.rounds import FederationState
from fedprompt.methods import Method
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.fedvpt_d import FedVPTDeep
from fedprompt.methods.head_tune import HeadTune


def trained(method: type[Method], head: str = "global", **params: Any) -> FederationState:
    federation = toy_federation(method, {"lr": 0.3, **params}, head=head)
    state = federation.start()
    for cohort in ([0, 1, 2], [1, 3]):
        federation.step(state, cohort)
    return state


def test_cached_features_give_the_logits_of_the_images() -> None:
    cached = toy_federation(HeadTune)
    live = toy_federation(FedVPT, {"length": 0}, head="global")
    _, theta = cached.theta(cached.start(), [0, 2])
    batches = [next(iter(f.data.ordered([0, 2], "test", 16, [torch.Generator()] * 2))) for f in (cached, live)]
    with_images = live.method.predict({**theta, "prompt": torch.zeros(2, 0, 32)}, batches[1])
    torch.testing.assert_close(cached.method.predict(theta, batches[0]), with_images, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("prompted", [FedVPT, FedVPTDeep])
@pytest.mark.parametrize("head", ["local", "global"])
def test_prompts_of_length_zero_are_head_tuning(prompted: type[Method], head: str) -> None:
    """Trained from images with empty prompts, and from cached features without any: the same heads."""
    with_prompts, without = trained(prompted, head, length=0), trained(HeadTune, head)
    for name in without.server:
        torch.testing.assert_close(with_prompts.server[name], without.server[name], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(with_prompts.personal, without.personal, atol=1e-5, rtol=1e-5)
    assert (head == "local") == (not without.server)


def test_head_tune_keeps_nothing_with_the_client() -> None:
    assert trained(HeadTune).personal == {0: {}, 1: {}, 2: {}, 3: {}}


def test_local_heads_do_not_depend_on_others() -> None:
    federation = toy_federation(HeadTune, {"lr": 0.3}, head="local")
    alone, beside = federation.start(), federation.start()
    federation.step(alone, [1])
    federation.step(beside, [0, 1, 3])
    torch.testing.assert_close(beside.personal[1], alone.personal[1], atol=1e-6, rtol=1e-6)


def test_methods_start_alike() -> None:
    """One seed, one first head: differences between methods are not those of a draw."""
    plain, deep = toy_federation(HeadTune).start(), toy_federation(FedVPTDeep, head="global").start()
    assert torch.equal(plain.server["head.weight"], deep.server["head.weight"])
    alone, local = toy_federation(HeadTune, head="local"), toy_federation(FedVPTDeep)
    heads = [federation.personal(federation.start(), 0)["head.weight"] for federation in (alone, local)]
    assert torch.equal(*heads)
    assert torch.equal(deep.server["prompts"], local.start().server["prompts"])
