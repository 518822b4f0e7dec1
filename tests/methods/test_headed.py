import math

import pytest
import torch

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.methods import Batch, registry
from fedprompt.methods._headed import cross_entropy, head_init, linear, prompt_init


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_prompts_are_uniform_in_vpts_range() -> None:
    draws = prompt_init((12, 10, 768), 16, rng())
    assert draws.abs().max() == pytest.approx(0.0625, abs=1e-4)
    assert draws.std() == pytest.approx(0.0361, abs=2e-4)
    assert draws.mean() == pytest.approx(0, abs=5e-4)


def test_torch_default_head() -> None:
    head, bound = head_init("torch_default", 100, 768, rng()), 1 / math.sqrt(768)
    layer = torch.nn.Linear(768, 100)
    assert head["head.weight"].std() == pytest.approx(layer.weight.std().item(), rel=0.02)
    assert bound * 0.999 < head["head.weight"].abs().max() <= bound
    assert bound * 0.9 < head["head.bias"].abs().max() <= bound


@pytest.mark.parametrize(("classes", "std"), [(10, 0.447), (100, 0.141)])
def test_kaiming_head(classes: int, std: float) -> None:
    head = head_init("kaiming_fan_out", classes, 768, rng())
    assert head["head.weight"].std() == pytest.approx(std, rel=0.03)
    assert head["head.bias"].eq(0).all()


def test_zero_head() -> None:
    assert not any(tensor.any() for tensor in head_init("zeros", 10, 32, rng()).values())


def test_each_client_has_its_own_head() -> None:
    theta = {"head.weight": torch.randn(3, 4, 8), "head.bias": torch.randn(3, 4)}
    features = torch.randn(3, 5, 8)
    logits = linear(features, theta)
    for k in range(3):
        expected = features[k] @ theta["head.weight"][k].T + theta["head.bias"][k]
        torch.testing.assert_close(logits[k], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["head-tune", "pfedbayespt-d"])
def test_a_head_may_read_the_feature_after_layer_norm(name: str) -> None:
    method = toy_federation(registry().get(name), head_input="normalised").method
    theta = {"head.weight": torch.randn(3, 4, 32), "head.bias": torch.randn(3, 4)}
    features = 7 + 50 * torch.randn(3, 5, 32)
    expected = linear(torch.nn.LayerNorm(32, elementwise_affine=False)(features), theta)
    torch.testing.assert_close(method.classify(features, theta), expected)  # type: ignore[attr-defined]


def test_loss_is_the_mean_over_real_samples() -> None:
    labels = torch.tensor([[0, 1, 1], [1, 0, 0]])
    logits = torch.randn(2, 3, 2)
    loss = cross_entropy(logits, Batch((0, 1), labels, (3, 1), None, None, []))
    torch.testing.assert_close(loss[0], torch.nn.functional.cross_entropy(logits[0], labels[0]))
    torch.testing.assert_close(loss[1], torch.nn.functional.cross_entropy(logits[1, :1], labels[1, :1]))


# -- first values of prompts ------------------------------------------------------------------------------------------

PROMPTED = [name for name in registry().names(FrozenViT.offers) if hasattr(registry().get(name).Params, "init")]


@pytest.mark.parametrize(
    ("name", "prompts"), [("fedvpt", "prompt"), ("fedvpt-d", "prompts"), ("pfedbayespt", "prompts")]
)
def test_small_prompts_are_a_tenth_of_vpts(name: str, prompts: str) -> None:
    vpt, small = (toy_federation(registry().get(name), {"init": init}).start().server for init in ("vpt", "small"))
    torch.testing.assert_close(small[prompts], 0.1 * vpt[prompts])


def test_prompts_may_begin_at_the_mean_token_of_their_own_block() -> None:
    federation = toy_federation(registry().get("fedvpt-d"), {"init": "tokens", "length": 400})
    vit, task = federation.method.backbone, federation.method.task
    means = vit.layer_inputs(task.examples).mean((0, 2))
    prompts = federation.start().server["prompts"]
    assert prompts.shape == (3, 400, 32)
    torch.testing.assert_close(prompts.mean(1), means, atol=0.005, rtol=0)
    assert prompts.std(1).min() > 0  # rows that began alike would stay alike


@pytest.mark.parametrize("name", PROMPTED)
def test_first_values_change_prompts_and_nothing_else(name: str) -> None:
    states = [toy_federation(registry().get(name), {"init": init}).start().server for init in ("vpt", "tokens")]
    changed = {key for key in states[0] if not torch.equal(states[0][key], states[1][key])}
    assert changed
    assert changed <= {"prompt", "prompts", "base", "shared", "groups", "classes"}


@pytest.mark.parametrize("name", [n for n in registry().names(FrozenViT.offers) if n != "head-tune"])
def test_the_head_has_its_own_rate_where_given(name: str) -> None:
    method = toy_federation(registry().get(name), {"lr": 0.25, "head_lr": 0.5}).method
    for stage in (*hooks.stages(method, 1), hooks.adaptation(method, 1)):
        heads = {rate for tensor, rate in stage.rates.items() if tensor.startswith("head.")}
        assert heads == {0.5}
        assert 0.5 not in [rate for tensor, rate in stage.rates.items() if not tensor.startswith("head.")]
    for stage in hooks.unseen_stages(method, 1):
        assert {rate for tensor, rate in stage.rates.items() if tensor.startswith("head.")} <= {0.5}
