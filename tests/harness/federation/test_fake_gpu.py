"""What a GPU would be asked to do, as far as tensors without values can tell."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.weights import BackboneSpec, load_backbone
from fedprompt.harness.conformance.toy import toy_dataset, toy_partition
from fedprompt.harness.federation import rounds
from fedprompt.harness.federation.clients import ClientData
from fedprompt.harness.federation.optimiser import learn
from fedprompt.harness.federation.rounds import Federation
from fedprompt.harness.measuring import evaluation as evaluation_module
from fedprompt.harness.planning.cost import meta_method, shape_federation
from fedprompt.methods.pfedpg import LEARNED

MICRO = BackboneSpec("micro-vit", "random", 32)
ATTENDED: set[torch.dtype] = set()  # formats in which queries, keys and values reach the fused attention
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "convolution")


class Seen(TorchDispatchMode):
    """Number formats of all matrix products, and whether they may be made in TF32."""

    def __init__(self) -> None:
        super().__init__()
        self.formats: set[torch.dtype] = set()
        self.tf32: set[bool] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in PRODUCTS:
            self.formats.add(result.dtype)
            self.tf32.add(torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32)
        return result


class DoneError(Exception):
    """The passes have been made; what follows reads values."""


@pytest.fixture
def backbone(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrozenViT]:
    """micro-vit on a `cuda` that has bf16. Gradients are zeros of the right kind, for autograd wants a real device."""

    def zeros(_: Tensor, inputs: Sequence[Tensor], **__: Any) -> list[Tensor]:
        return [torch.zeros_like(tensor) for tensor in inputs]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Without a GPU torch would take its kernel for all devices, which multiplies in float32."""
        assert query.dtype == key.dtype == value.dtype
        ATTENDED.add(value.dtype)
        return torch.empty_like(query)

    ATTENDED.clear()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(torch.autograd, "grad", zeros)
    monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda *_: True)
    monkeypatch.setattr(rounds, "require_finite", lambda *_: None)
    shapes = load_backbone(MICRO, device="meta")
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield shapes.to_empty(device="cuda")


def gpu_federation(name: str, backbone: FrozenViT, precision: str) -> Federation:
    federation = shape_federation(meta_method(name, backbone, 10, clients=2), clients=2, batch_size=8)
    federation.protocol = replace(federation.protocol, precision=precision, never_sampled="as_is")
    return federation


FORMATS = [("fp32", torch.float32, False), ("tf32", torch.float32, True), ("bf16", torch.bfloat16, True)]


@pytest.mark.parametrize("name", ["fedvpt-d", "pfedbayespt", "sgpt"])
@pytest.mark.parametrize(("precision", "expected", "tf32"), FORMATS)
def test_training_multiplies_in_the_format_of_the_cell(
    name: str, precision: str, expected: torch.dtype, tf32: bool, backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = gpu_federation(name, backbone, precision)
    original, trained = federation._train, {}

    def train(*args: Any) -> Any:
        with seen:
            trained.update(original(*args)[0])
        raise DoneError

    seen = Seen()
    monkeypatch.setattr(federation, "_train", train)
    with pytest.raises(DoneError):
        federation.step(federation.start())
    assert (seen.formats, ATTENDED, seen.tf32) == ({expected}, {expected}, {tf32})
    assert {tensor.dtype for tensor in trained.values() if tensor.is_floating_point()} == {torch.float32}
    assert not torch.is_autocast_enabled("cuda")


@pytest.mark.parametrize(("precision", "expected", "tf32"), FORMATS)
def test_evaluation_multiplies_in_the_format_of_the_cell(
    precision: str, expected: torch.dtype, tf32: bool, backbone: FrozenViT, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation, seen = gpu_federation("fedvpt-d", backbone, precision), Seen()

    def predict(ready: Federation, _: Any, theta: Any, clients: Any, *__: Any) -> Any:
        batch = next(ready.data.ordered(clients, "test", 8, [torch.Generator() for _ in clients]))
        with seen, torch.no_grad():
            ready.method.predict(theta, batch)
        raise DoneError

    monkeypatch.setattr(evaluation_module, "score_clients", predict)
    with pytest.raises(DoneError):
        evaluation_module.evaluate(federation, federation.start())
    assert (seen.formats, ATTENDED, seen.tf32) == ({expected}, {expected}, {tf32})


def test_moments_of_clients_and_server_live_on_the_gpu(backbone: FrozenViT) -> None:
    """Fake tensors refuse to meet others of another device."""
    federation = gpu_federation("fedvpt-d", backbone, "fp32")
    federation.protocol = replace(federation.protocol, optimiser="adamw", clip=1.0, warmup=1)
    trained, _ = federation._train(federation.theta(federation.start(), (0, 1))[1], (0, 1), 1)
    assert {tensor.device.type for tensor in trained.values()} == {"cuda"}
    method: Any = meta_method("pfedpg", backbone, 10, clients=2, gen_optimizer="adam")
    server = shape_federation(method, clients=2, batch_size=8).start().server
    learned, state = learn(method, server, {name: torch.zeros_like(server[name]) for name in LEARNED}, {}, [1], 0.5)
    assert {tensor.device.type for tensor in (*learned.values(), *state.values())} == {"cuda"}


# -- copies ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Size, bool]]:
    """Shapes of all tensors that would go to a GPU, and whether from pinned memory without waiting."""
    sent: list[tuple[torch.Size, bool]] = []
    pinned: set[int] = set()

    def pin(tensor: Tensor) -> Tensor:
        pinned.add(id(tensor))
        return tensor

    def to(tensor: Tensor, device: str, non_blocking: bool = False) -> Tensor:
        assert device == "cuda"
        sent.append((tensor.shape, non_blocking and id(tensor) in pinned))
        return tensor

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    monkeypatch.setattr(Tensor, "to", to)
    return sent


def gpu_batch(image_memory: int, copies: list[tuple[torch.Size, bool]]) -> list[tuple[torch.Size, bool]]:
    """The copies of a batch of three and two images; those before it are forgotten."""
    data = ClientData(toy_dataset(), toy_partition(), frozenset({"images"}), device="cuda", image_memory=image_memory)
    copies.clear()
    data.batch((0, 1), "train", [torch.arange(3), torch.arange(2)], ())
    return copies


def test_batches_are_copied_from_pinned_memory_without_waiting(copies: list[tuple[torch.Size, bool]]) -> None:
    assert gpu_batch(0, copies) == [((5, 3, 16, 16), True), ((2, 3), True)]


def test_of_images_that_are_on_the_device_only_their_numbers_are_copied(copies: list[tuple[torch.Size, bool]]) -> None:
    assert gpu_batch(2**30, copies) == [((5,), True), ((2, 3), True)]


def test_what_is_sent_arrives_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    data = ClientData(toy_dataset(), toy_partition(), frozenset({"images"}), device="cuda")
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: tensor)  # needs a driver
    with FakeTensorMode():
        assert data._sent(torch.zeros(3)).device.type == "cuda"
