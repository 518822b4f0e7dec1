"""Every method under recipes other than the default."""

import pytest
import torch

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.harness.conformance.lab import ALL, close, double_precision, flat
from fedprompt.harness.conformance.toy import toy_backbone, toy_federation
from fedprompt.harness.federation.rounds import FederationState
from fedprompt.harness.measuring.evaluation import adapt
from fedprompt.methods import State, registry

RECIPE = {"optimiser": "adamw", "schedule": "cosine", "warmup": 1, "clip": 1.0, "head_input": "normalised"}


def trained(name: str, stack: int) -> FederationState:
    federation = toy_federation(registry().get(name), participation=1.0, stack=stack, **RECIPE)
    state = federation.start()
    for _ in range(2):
        federation.step(state)
    return state


@pytest.mark.parametrize("name", registry().names())
def test_every_method_trains_stacked_as_one_by_one(name: str) -> None:
    with double_precision():
        alone, stacked = (flat(trained(name, stack)) for stack in (1, len(ALL)))
    assert all(bool(tensor.isfinite().all()) for tensor in alone.values())
    close(alone, stacked, "stacked against one by one", 1e-7)


@pytest.mark.parametrize("name", registry().names(FrozenViT.offers))
def test_normalised_heads_do_not_see_how_long_features_are(name: str) -> None:
    """Neither in rounds, nor while an unseen client or a copy for an evaluation is fitted."""
    runs: list[State] = []
    for gain in (1.0, 4.0):
        backbone = toy_backbone()
        for parameter in backbone.vit.norm.parameters():
            parameter.data *= gain
        federation = toy_federation(registry().get(name), backbone=backbone, head_input="normalised", head="global")
        state = federation.start()
        federation.step(state, ALL[:-1])
        fitted = adapt(federation, state, ALL[-1:], 2, unseen=True)
        runs.append({**flat(state), **{f"fitted {key}": tensor for key, tensor in fitted.items()}})
    sums = {"server prototypes", "server counts"}  # of PEP-FedPT: what it knows of classes is not read by the head
    close(*({key: run[key] for key in run.keys() - sums} for run in runs), "features four times as long", 1e-3)


def test_raw_heads_see_how_long_features_are() -> None:
    heads = []
    for gain in (1.0, 4.0):
        backbone = toy_backbone()
        for parameter in backbone.vit.norm.parameters():
            parameter.data *= gain
        federation = toy_federation(registry().get("fedvpt"), backbone=backbone, head="global")
        heads.append(adapt(federation, federation.start(), [0], 1)["head.weight"])
    assert (heads[0] - heads[1]).abs().max() > 1e-2


@pytest.mark.parametrize("name", ["promptfl", "fedclip"])
def test_methods_with_text_have_no_head_that_could_read_otherwise(name: str) -> None:
    states = []
    for reads in ("raw", "normalised"):
        federation = toy_federation(registry().get(name), head_input=reads)
        states.append(federation.start())
        federation.step(states[-1])
    assert all(torch.equal(states[0].server[key], states[1].server[key]) for key in states[0].server)
