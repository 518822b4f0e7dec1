"""Costs at ViT-B/16 and 224 px, counted on `meta`; device faults found by fake tensors on a GPU that is not there."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support.payloads import floats_sent
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.harness.conformance.toy import toy_backbone
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.clients import SplitName
from fedprompt.harness.federation.counting import counted
from fedprompt.harness.federation.training import train
from fedprompt.harness.measuring import evaluation
from fedprompt.harness.measuring.evaluation import adapt
from fedprompt.harness.planning.cost import Cost, cost, meta_backbone, meta_method, shape_federation
from fedprompt.methods import Batch, State, registry
from fedprompt.methods.fedvpt import FedVPT

pytestmark = pytest.mark.slow  # the whole file, for what it adds up to

METHODS = registry().names(FrozenViT.offers)
TOKENS, WIDTH, HEADS = 197, 768, 12
BLOCK = 24 * TOKENS * WIDTH**2 + 4 * TOKENS**2 * WIDTH  # q, k, v: 6; out: 2; MLP: 16; two products with tokens x tokens
CLS_BLOCK = 24 * WIDTH**2 + 4 * HEADS * TOKENS * WIDTH  # one row; each head's scores and mean of all normed tokens
PATCHES = 2 * (TOKENS - 1) * WIDTH * (3 * 16**2)


@cache
def vit_base() -> FrozenViT:
    return meta_backbone()


@cache
def costs(name: str) -> Cost:
    return cost(meta_method(name, vit_base()), clients=1, batch_size=64)


def forward_flops(rows: int) -> int:
    images = torch.zeros(2, 3, 224, 224, dtype=torch.uint8, device="meta")
    with counted() as flops:
        vit_base().forward(images, rows=rows)
    return flops.flops // 2


def test_a_forward_pass_of_vit_base_is_35_gflops() -> None:
    assert forward_flops(TOKENS) == 12 * BLOCK + PATCHES == 35_126_120_448


def test_the_last_block_for_cls_only_saves_nearly_three_gflops() -> None:
    assert forward_flops(TOKENS) - forward_flops(1) == BLOCK - CLS_BLOCK == 2_886_491_136


def test_attention_counts_alike_with_and_without_the_fused_kernel() -> None:
    images = torch.zeros(1, 3, 224, 224, dtype=torch.uint8, device="meta")
    with FlopCounterMode(display=False) as plain:
        vit_base().forward(images)
    assert plain.get_total_flops() == forward_flops(1)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.slow
def test_a_step_and_an_evaluation_at_vit_base(name: str) -> None:
    found = costs(name)
    method = meta_method(name, vit_base())
    assert found.images == 64
    stages = [f"train {stage.name}" for stage in hooks.stages(method, 1)]
    assert [kind for kind in found.flops if kind.startswith("train")] == stages
    assert min(found.flops[stage] for stage in stages) > found.flops["evaluate"] / 8 > 0
    assert (found.floats_down, found.floats_up) == floats_sent(method)


@pytest.mark.parametrize("name", METHODS)
def test_meta_counts_what_a_real_step_does(name: str) -> None:
    real, meta = toy_backbone(), toy_backbone().to("meta")
    assert cost(meta_method(name, meta, 4, 2), 2, 8) == cost(meta_method(name, real, 4, 2), 2, 8)


def test_a_head_on_kept_features_costs_next_to_nothing() -> None:
    found = costs("head-tune")
    assert (
        found.train_flops == 2 * found.flops["evaluate"] == 2 * 64 * 2 * 100 * WIDTH
    )  # logits, and the head's gradient
    assert found.flops["features"] == 64 * (11 * BLOCK + CLS_BLOCK + PATCHES)
    assert found.train_flops < costs("fedvpt").train_flops / 100_000


def test_deep_prompts_cost_less_than_shallow_ones() -> None:
    """They are keys and values in eleven blocks, and their rows end there: no query, projection or MLP."""
    per_row = 64 * 10 * (20 * WIDTH**2 + 4 * (TOKENS + 10) * WIDTH)
    assert costs("fedvpt").flops["evaluate"] - costs("fedvpt-d").flops["evaluate"] == 11 * per_row
    assert costs("fedvpt-d").train_flops < 0.95 * costs("fedvpt").train_flops
    assert costs("fedvpt-d").saved_bytes < 0.97 * costs("fedvpt").saved_bytes


def test_a_stage_that_trains_late_tokens_has_a_shorter_way_back() -> None:
    found = costs("sgpt")
    assert found.train_flops == found.flops["train shared"] + found.flops["train group"]
    assert found.flops["train group"] < 0.8 * found.flops["train shared"]


@pytest.mark.slow
def test_a_sweep_makes_the_passes_of_all_draws() -> None:
    """Ten instead of five."""
    vit, kinds = toy_backbone().to("meta"), ("evaluate", "sweep")
    methods = [meta_method("pfedbayespt", vit, 4, samples=v) for v in (5, 9, 1)]
    fewer, more, one = (cost(method, 1, 2, kinds).flops for method in methods)
    draw = (fewer["evaluate"] - one["evaluate"]) // 4
    assert more["evaluate"] == fewer["evaluate"] + 4 * draw
    assert fewer["sweep"] == more["sweep"] == one["sweep"] == fewer["evaluate"] + 5 * draw


def test_methods_without_draws_sweep_at_the_price_of_an_evaluation() -> None:
    found = costs("fedvpt").flops
    assert found["sweep"] == found["evaluate"]


def test_fitting_a_head_needs_no_way_back_through_the_backbone() -> None:
    found = costs("fedvpt").flops
    assert found["adapt"] == 2 * 64 * 2 * 100 * WIDTH  # the head and its gradient
    assert found["inputs"] == found["evaluate"] - 64 * 2 * 100 * WIDTH


def test_counters_travel_as_whole_numbers_of_eight_bytes() -> None:
    found = costs("sgpt")
    assert found.bytes_up == 4 * found.floats_up + 4 * 6  # six groups


def test_only_named_kinds_are_counted() -> None:
    method = meta_method("sgpt", toy_backbone().to("meta"), 4)
    assert list(cost(method, kinds=["evaluate"]).flops) == ["begin", "train shared", "train group", "end", "evaluate"]


def test_activation_memory_grows_with_the_batch() -> None:
    method = meta_method("fedvpt", toy_backbone().to("meta"))
    saved = [cost(method, 1, size).saved_bytes for size in (8, 16, 24)]
    assert saved[2] - saved[1] == saved[1] - saved[0] > 0
    assert saved[1] == pytest.approx(2 * saved[0], rel=0.01)


# -- a GPU that is not there -----------------------------------------------------------------------------------------


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrozenViT]:
    """ViT-B/16 on a fake `cuda`; gradients are zeros of the right kind, for autograd wants a real device."""

    def zeros(_: Tensor, inputs: Sequence[Tensor], **__: Any) -> list[Tensor]:
        return [torch.zeros_like(tensor) for tensor in inputs]

    monkeypatch.setattr(torch.autograd, "grad", zeros)
    backbone = meta_backbone()
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield backbone.to_empty(device="cuda")


def elsewhere(state: State) -> list[str]:
    return [name for name, tensor in state.items() if tensor.device.type != "cuda"]


SPLITS: tuple[SplitName, ...] = ("train", "test")
LOOK_AT_VALUES = ("pfpt", "hilora")  # servers that match prompts and group clients


@pytest.mark.parametrize("name", METHODS)
def test_everything_stays_on_the_gpu(name: str, gpu: FrozenViT, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "require_finite", lambda *_: None)  # looks at values
    method = meta_method(name, gpu, clients=2)
    federation = shape_federation(method, clients=2, batch_size=64)
    clients, state = federation.members, federation.start()
    received, theta = federation.theta(state, clients)
    theta, loss = train(method, theta, hooks.stages(method, 1), federation.data, clients, federation.protocol, (0, 2))
    rngs = [torch.Generator(), torch.Generator()]
    seen, batch = (next(federation.data.ordered(clients, split, 64, rngs)) for split in SPLITS)
    theta |= hooks.end_visit(method, theta, [replace(seen, stage="evaluate")])
    sent = method.upload(theta, received)
    assert elsewhere(theta) == elsewhere(sent) == elsewhere(hooks.diagnostics(method, theta, seen)) == []
    if name not in LOOK_AT_VALUES:
        assert elsewhere(method.aggregate(state.server, sent, federation.weights(clients), clients)) == []
    assert elsewhere(adapt(federation, state, clients, epochs=1, unseen=True)) == []
    assert elsewhere({"loss": loss, "scores": method.predict(theta, batch)}) == []


class LeftBehind(FedVPT):
    """Makes a constant without saying where."""

    def features(self, theta: State, batch: Batch) -> Tensor:
        return super().features(theta, batch) + torch.ones(self.backbone.width)


def test_a_tensor_left_on_the_cpu_is_found(gpu: FrozenViT) -> None:
    sound = meta_method("fedvpt", gpu)
    federation = shape_federation(LeftBehind(sound.params, gpu, sound.task), clients=1, batch_size=2)
    _, theta = federation.theta(federation.start(), [0])
    batch = next(federation.data.ordered([0], "test", 2))
    with pytest.raises(RuntimeError, match="cuda:0 and cpu"):
        federation.method.predict(theta, batch)
