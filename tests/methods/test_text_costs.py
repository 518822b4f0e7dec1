"""What text methods cost: floats at ViT-B/16 shapes, on `meta`, against the papers; texts, however many images."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support.payloads import floats_sent
from torch import Tensor
from torch._subclasses import FakeTensorMode

from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.weights import BackboneSpec, load_backbone
from fedprompt.core.fields import build
from fedprompt.harness.conformance.lab import ALL, after_rounds, first_rows
from fedprompt.harness.conformance.toy import CLASS_NAMES, toy_clip
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.payload import traffic
from fedprompt.harness.federation.training import train
from fedprompt.harness.measuring import evaluation
from fedprompt.harness.measuring.evaluation import adapt
from fedprompt.harness.planning.cost import cost, shape_federation
from fedprompt.methods import Downloads, Method, State, Task, _outside_words, fedotp, registry
from fedprompt.methods.pfedmoap import PFedMoAP
from fedprompt.methods.pfedprompt import PFedPrompt

TEXT_METHODS = [name for name in registry().names() if "text" in registry().get(name).needs]
CLIENTS = 10


@cache
def clip_base() -> FrozenCLIP:
    pytest.importorskip("open_clip")
    backbone = load_backbone(BackboneSpec("clip:ViT-B-16", "random", 224), device="meta")
    assert isinstance(backbone, FrozenCLIP)
    return backbone


def at_base(text: str) -> Method:
    name, *params = text.split()
    method = registry().get(name)
    task = Task(tuple(f"class {c}" for c in range(100)), torch.ones(CLIENTS, 100), "none")
    return method(build(method.Params, dict(param.split("=") for param in params), name), clip_base(), task)


def floats(state: State) -> int:
    return sum(tensor.numel() for tensor in state.values())


# name and parameters, floats down, floats up, floats that a client trains and keeps to itself
CASES = [
    ("zs-clip", 0, 0, 0),
    ("coop", 0, 0, 8_192),
    ("promptfl", 8_192, 8_192, 0),
    ("promptfl-ft", 8_192, 8_192, 0),
    ("kgcoop", 8_192, 8_192, 0),
    ("kgcoop length=4", 2_048, 2_048, 0),
    ("prograd", 8_192, 8_192, 0),
    ("maple", 3_555_072, 3_555_072, 0),
    ("maple blocks=1", 395_008, 395_008, 0),
    ("promptsrc", 92_160, 46_080, 0),
    ("promptsrc spread=0", 46_080, 46_080, 0),
    ("prompt-fedper", 4_096, 4_096, 4_096),
    ("prompt-fedprox", 8_192, 8_192, 0),
    ("prompt-fedamp", 8_192, 8_192, 8_192),
    ("fedotp", 8_192, 8_192, 8_192),
    ("fedpgp", 8_192, 8_192, 4_224),
    ("fedpgp rank=4", 8_192, 8_192, 2_112),
    ("fedpurel", 2_048, 2_048, 2_048),
    ("pfedmoap", 81_920, 8_192, 66_048),
    ("pfedmoap experts=3", 32_768, 8_192, 66_048),
    ("pfedprompt", 8_192, 8_192, 0),
    ("pfeddc", 14_336, 14_336, 14_336 + 1_050_624 + 2_362_368),
    ("promptfolio", 8_192, 8_192, 8_192),
    ("promptfolio length=8", 4_096, 4_096, 4_096),
    ("fedpha", 8_192, 8_192, 8_192),
    ("fedpha own_lengths=4,32", 8_192, 8_192, 512 * 32),  # of which a client uses its own length
    ("fedclip", 525_312, 525_312, 0),
    ("fedtpg", 4_206_080, 4_206_080, 0),
    ("fedmgp", 5_120, 5_120, 12_800),
    ("dp-fpl", 8_192, 8_192, 8_192),
    ("pfedmma", 8_448, 8_448, 666_112),
    ("fedsept", 1_024, 1_024, 536_580),
    ("fedsept router=affine", 1_024, 1_024, 273_924),
    ("focoop", 1_638_400, 1_638_400, 819_200),
    ("fedmvp", 9_882_624 - 36_864, 9_882_624 - 36_864, 0),  # without the low-rank stage of the public code
]


@pytest.mark.parametrize(("text", "down", "up", "private"), CASES)
def test_payload_at_vit_base(text: str, down: int, up: int, private: int) -> None:
    method = at_base(text)
    server = {name: tensor.to("meta") for name, tensor in method.init_server(torch.Generator()).items()}
    personal = method.init_personal(torch.Generator(), 0)
    received = hooks.download(method, server, [0])
    theta = {**received, **{name: tensor[None].to("meta") for name, tensor in personal.items()}}
    sent = {name: tensor[0] for name, tensor in method.upload(theta, received).items()}
    down_sent = hooks.sent_tensors(method, received, 0)
    assert (floats(down_sent), floats(sent)) == (down, up) == floats_sent(method)
    assert floats({name: theta[name][0] for name in method.rates() if name not in down_sent}) == private


def test_a_first_visit_costs_pfedmoap_one_context() -> None:
    assert traffic(at_base("pfedmoap")).first_down.floats == 8_192


@pytest.mark.parametrize("name", TEXT_METHODS)
def test_texts_are_encoded_for_clients_and_classes_however_many_images_there_are(name: str) -> None:
    federation, state = after_rounds(registry().get(name), None, 1)
    _, theta = federation.theta(state, ALL)
    backbone: Any = federation.method.backbone
    encoded: list[int] = []
    features = backbone.text_features

    def counted(context: torch.Tensor, prompts: Any) -> torch.Tensor:
        encoded.append(len(context))
        return features(context, prompts)

    backbone.text_features = counted
    counts = []
    for images in (1, 5):
        batch = first_rows(federation, ALL, [images] * 4, "train", theta)
        encoded.clear()
        federation.method.loss(theta, batch)
        counts.append(sum(encoded))
    assert counts[0] == counts[1] <= 5 * len(ALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXT_METHODS)
def test_everything_stays_on_a_gpu_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def zeros(_: Tensor, inputs: Tensor | Sequence[Tensor], *__: Any, **___: Any) -> list[Tensor]:
        return [torch.zeros_like(tensor) for tensor in ([inputs] if isinstance(inputs, Tensor) else inputs)]

    monkeypatch.setattr(torch.autograd, "grad", zeros)  # autograd wants a real device
    monkeypatch.setattr(fedotp, "transport", lambda similarity, *_: torch.zeros_like(similarity))  # looks at values
    monkeypatch.setattr(PFedMoAP, "sent_tensors", Downloads.sent_tensors)  # so do these two
    monkeypatch.setattr(PFedPrompt, "longest", 4)
    monkeypatch.setattr(_outside_words, "_farthest", lambda *given: given[2][: given[4]])
    monkeypatch.setattr(evaluation, "require_finite", lambda *_: None)  # this, too
    cls, clip = registry().get(name), toy_clip().to("meta")
    task, params = Task(CLASS_NAMES, torch.ones(2, 4, dtype=torch.int64), "none"), build(cls.Params, {}, name)
    with FakeTensorMode(allow_non_fake_inputs=True):
        method = cls(params, clip.to_empty(device="cuda"), task)
        federation = shape_federation(method, clients=2, batch_size=4)
        clients, state = federation.members, federation.start()
        received, theta = federation.theta(state, clients)
        theta, loss = train(
            method, theta, hooks.stages(method, 1), federation.data, clients, federation.protocol, (0, 2)
        )
        batch = next(federation.data.ordered(clients, "test", 4))
        constants = hooks.begin_evaluation(method, theta, federation.data.ordered(clients, "train", 4))
        sent = method.upload(theta, received)
        seen = {**theta, **constants, "loss": loss, "scores": method.predict(theta, replace(batch, start=constants))}
        seen |= method.aggregate(state.server, sent, federation.weights(clients), clients)
        seen |= adapt(federation, state, clients, 1, unseen=True)
        assert [key for key, tensor in seen.items() if tensor.device.type != "cuda"] == []


@pytest.mark.parametrize("name", ["fedclip", "fedpgp", "fedtpg", "fedmvp", "kgcoop", "prograd", "promptsrc"])
def test_constant_texts_are_no_part_of_a_steps_cost(name: str) -> None:
    method = registry().get(name)
    task = Task(CLASS_NAMES, torch.ones(2, 4, dtype=torch.int64), "none")
    built = method(build(method.Params, {}, name), toy_clip().to("meta"), task)
    assert cost(built, 2, 4).flops["train train"] == cost(built, 2, 4).flops["train train"]
