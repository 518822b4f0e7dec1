import pytest
import torch

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.rounds import Federation
from fedprompt.methods import Method
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.fedvpt_d import FedVPTDeep

BOTH = pytest.mark.parametrize("method", [FedVPT, FedVPTDeep])


def logits(federation: Federation, theta: dict[str, torch.Tensor]) -> torch.Tensor:
    batch = next(iter(federation.data.ordered([0, 2], "test", 16, [torch.Generator()] * 2)))
    return federation.method.predict(theta, batch)


def test_shapes_of_the_prompts() -> None:
    assert toy_federation(FedVPT).start().server["prompt"].shape == (10, 32)
    assert toy_federation(FedVPTDeep).start().server["prompts"].shape == (3, 10, 32)
    assert toy_federation(FedVPTDeep, {"depth": 2, "length": 4}).start().server["prompts"].shape == (2, 4, 32)


def test_more_prompted_blocks_than_there_are_is_refused() -> None:
    with pytest.raises(UserError, match=r"depth = 4, but backbone 'toy' has 3 blocks; use 1 to 3"):
        toy_federation(FedVPTDeep, {"depth": 4})


@BOTH
@pytest.mark.parametrize(("head", "shared"), [("local", False), ("global", True)])
def test_who_owns_the_head(method: type[Method], head: str, shared: bool) -> None:
    federation = toy_federation(method, head=head)
    state = federation.start()
    federation.step(state, [0, 1])
    assert ("head.weight" in state.server) is shared
    assert all(("head.weight" in personal) is not shared for personal in state.personal.values())


def test_deep_with_one_prompted_block_is_shallow() -> None:
    one, deep = toy_federation(FedVPT), toy_federation(FedVPTDeep, {"depth": 1})
    _, theta = one.theta(one.start(), [0, 2])
    stacked = {**theta, "prompts": theta["prompt"][:, None]}
    assert torch.equal(logits(one, theta), logits(deep, stacked))


def test_after_depth_reaches_the_backbone() -> None:
    propagate, drop = (toy_federation(FedVPTDeep, {"depth": 1, "after_depth": rule}) for rule in ("propagate", "drop"))
    _, theta = propagate.theta(propagate.start(), [0, 2])
    theta["prompts"] = 5 * theta["prompts"]
    assert (logits(propagate, theta) - logits(drop, theta)).abs().max() > 1e-6


@BOTH
def test_order_of_the_prompt_rows_does_not_matter(method: type[Method]) -> None:
    federation = toy_federation(method)
    received, theta = federation.theta(federation.start(), [0, 2])
    (name,) = received
    other = {**theta, name: theta[name].flip(-2)}
    torch.testing.assert_close(logits(federation, theta), logits(federation, other), atol=1e-5, rtol=1e-5)


@BOTH
def test_prompt_and_head_train_together(method: type[Method]) -> None:
    federation = toy_federation(method)
    state = federation.start()
    (name,) = state.server
    before, head = state.server[name].clone(), federation.personal(state, 0)
    federation.step(state, [0])
    moved = (state.server[name] - before).abs().flatten(-2).amax(-1)
    assert moved.min() > 0  # in every prompted block
    assert not torch.equal(state.personal[0]["head.weight"], head["head.weight"])
    assert not torch.equal(state.personal[0]["head.bias"], head["head.bias"])


def test_a_client_is_evaluated_with_the_new_prompt_and_its_older_head() -> None:
    federation = toy_federation(FedVPT)
    state = federation.start()
    federation.step(state, [0])
    head = state.personal[0]["head.weight"].clone()
    federation.step(state, [1])
    _, theta = federation.theta(state, [0])
    assert torch.equal(theta["prompt"][0], state.server["prompt"])
    assert torch.equal(theta["head.weight"][0], head)
