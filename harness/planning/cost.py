"""What a method costs, counted on shapes alone: no weights, no images, hardly any time.

On `meta` everything goes through the code of a real visit. FLOPs are those of matrix products, convolutions and
attention, a multiplication and an addition counting two; norms, softmax and activations are left out, as is usual.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from fedprompt.harness.core.fields import build
from fedprompt.harness.federation.clients import ClientData, Split
from fedprompt.harness.federation.evaluation import adapt
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.harness.federation.training import train
from fedprompt.harness.model.backbone import FrozenViT
from fedprompt.harness.model.batch import Batch
from fedprompt.harness.model.weights import BackboneSpec, load_backbone
from fedprompt.methods import Method, Stage, State, Task, registry

VIT_BASE = "vit_base_patch16_224"
TRAIN = "train "  # how kinds of training steps begin; the stage follows
ROUND = 2  # some methods do more from the second round on


@dataclass(frozen=True)
class Cost:
    """One batch of each of ``clients`` clients. Divide FLOPs and bytes saved by ``images`` for those of an image."""

    images: int
    flops: dict[str, int]  # by kind of pass, see `passes`
    saved_bytes: int  # kept for the backward pass, without weights and inputs, in the stage that keeps most
    floats_down: int  # of one client in a round, measured
    floats_up: int
    bytes_down: int
    bytes_up: int

    @property
    def train_flops(self) -> int:
        """A step in every stage: what an image costs in one local epoch (of each stage)."""
        return sum(flops for kind, flops in self.flops.items() if kind.startswith(TRAIN))


class ShapeData(ClientData):
    """Clients with ``size`` images each, of which nothing exists but shapes, on any device, fake ones too."""

    def __init__(self, method: Method, size: int) -> None:
        self.method, self.device, self.num_clients = method, method.backbone.device, method.task.num_clients
        self._size = size

    def size(self, client: int, split: Split = "train") -> int:  # noqa: ARG002
        return self._size

    def batch(
        self,
        clients: Sequence[int],
        split: Split,  # noqa: ARG002
        positions: Sequence[Tensor],
        rngs: Sequence[torch.Generator],
        stage: str = "train",
    ) -> Batch:
        vit, needs = self.method.backbone, self.method.needs
        sizes = tuple(len(places) for places in positions)
        rows, side = (len(sizes), max(sizes)), vit.image_size
        images = (sum(sizes), 3, side, side) if "images" in needs else (0,)
        features = (*rows, vit.width) if "features" in needs else (0,)
        return Batch(
            tuple(clients),
            torch.zeros(rows, dtype=torch.int64, device=self.device),
            sizes,
            torch.zeros(images, dtype=torch.uint8, device=self.device),
            torch.zeros(features, device=self.device),
            tuple(rngs),
            stage,
        )


def meta_backbone(name: str = VIT_BASE, image_size: int = 224) -> FrozenViT:
    """The architecture without weights."""
    return load_backbone(BackboneSpec(name, "random", image_size), device="meta")


def shape_federation(method: Method, clients: int, batch_size: int) -> Federation:
    """A federation whose visits are one step a stage, on the device of the method's backbone."""
    protocol = Protocol(epochs=1, batch_size=batch_size, stack=clients)
    return Federation(method, ShapeData(method, batch_size), protocol, seed=0, members=range(clients))


def passes(federation: Federation, state: FederationState, theta: State) -> dict[str, Callable[[], Any]]:
    """Every kind of pass over a batch of each client, as the harness makes it, to be counted or timed.

    `train STAGE` steps; `end` and `diagnose` close a visit; `evaluate` and `sweep` predict (with the method's own
    number of draws, with all of them); `adapt` and `newcomer` are steps of clients that never took part and of those
    kept out; `features` are frozen ones, computed once a run.
    """
    method, data, members, protocol = federation.method, federation.data, federation.members, federation.protocol
    rngs = [torch.Generator() for _ in members]
    batch = next(data.ordered(members, "train", protocol.batch_size, rngs))

    def step(stage: Stage) -> State:
        return train(method, theta, [replace(stage, epochs=1)], data, members, protocol, (0, ROUND))[0]

    def features() -> Tensor | None:
        if "features" not in method.needs:
            return None
        shape = (sum(batch.sizes), 3, *[method.backbone.image_size] * 2)
        images = torch.zeros(shape, dtype=torch.uint8, device=data.device)
        return method.backbone.cls(images, stop=method.feature_depth(method.params))

    return {
        **{f"{TRAIN}{stage.name}": partial(step, stage) for stage in method.stages(2)},
        "end": lambda: method.end_visit(theta, [batch]),
        "diagnose": lambda: method.diagnostics(theta, replace(batch, stage="diagnose")),
        "evaluate": torch.no_grad()(lambda: method.predict(theta, batch)),
        "sweep": torch.no_grad()(lambda: method.predictions(theta, batch)),
        "adapt": lambda: adapt(federation, state, members, epochs=1),
        "newcomer": lambda: adapt(federation, state, members, epochs=1, newcomers=True),
        "features": torch.no_grad()(features),
    }


def cost(method: Method, clients: int = 1, batch_size: int = 64, kinds: Collection[str] | None = None) -> Cost:
    """Costs of ``method`` with ``clients`` in one stack, best with a `meta_backbone`; its task has as many or more.

    Training and the end of a visit are always counted; of the other kinds only ``kinds``, if they are named.
    """
    federation = shape_federation(method, clients, batch_size)
    state = federation.start()
    received, theta = federation.theta(state, federation.members)
    flops, saved, trained = {}, [0], theta
    for kind, work in passes(federation, state, theta).items():
        visit = kind.startswith(TRAIN) or kind == "end"
        if kinds is None or visit or kind in kinds:
            with counted() as counter, kept_for_backward(method.backbone, theta) as kept:
                result = work()
            flops[kind] = counter.get_total_flops()
            if visit:
                trained = {**trained, **result}
                saved.append(sum(kept.values()))
    (floats_down, bytes_down), (floats_up, bytes_up) = _size(received), _size(method.upload(trained, received))
    return Cost(clients * batch_size, flops, max(saved), floats_down, floats_up, bytes_down, bytes_up)


def _size(payload: State) -> tuple[int, int]:
    """Floats and bytes of one client."""
    first = [tensor[0] for tensor in payload.values()]
    return sum(t.numel() for t in first), sum(t.numel() * t.element_size() for t in first)


class _FusedAttention(TorchFunctionMode):
    """Attention on `meta` by the kernel that real devices use: it keeps no (tokens x tokens) matrix for backward."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention and args[0].is_meta:
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*args, **(kwargs or {}))[0]
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[FlopCounterMode]:
    with _FusedAttention(), FlopCounterMode(display=False) as counter:
        yield counter


@contextmanager
def kept_for_backward(backbone: FrozenViT, theta: State) -> Iterator[dict[Any, int]]:
    """Bytes of every storage that autograd keeps, each once; weights and theta are there anyway."""
    there = [*backbone.parameters(), *backbone.buffers(), *theta.values()]
    known = {tensor.untyped_storage()._cdata for tensor in there}
    storages: dict[Any, int] = {}
    alive = []  # an address is used again once its storage is gone

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            alive.append(storage)
            storages[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield storages


def meta_method(name: str, backbone: FrozenViT, classes: int = 100, clients: int = 1, **params: Any) -> Method:
    """A registered method on shapes: ``classes`` classes, every client with an image of each."""
    cls = registry().get(name)
    task = Task(tuple(map(str, range(classes))), torch.ones(clients, classes, dtype=torch.int64))
    chosen: Any = build(cls.Params, params, name)
    return cls(chosen, backbone, task)


def markdown(backbone: FrozenViT, names: Sequence[str], classes: int = 100, batch_size: int = 64) -> str:
    """A table of what an image costs with each of these methods as it is by default."""
    lines = [
        "| method | GFLOPs in training | in evaluation | once a run | activations, MB | floats down | floats up |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name in names:
        method = meta_method(name, backbone, classes)
        spent = cost(method, 1, batch_size, ("evaluate", "features"))
        flops = (spent.train_flops, spent.flops["evaluate"], spent.flops["features"])
        cells = [f"{n / spent.images / 1e9:.4g}" for n in flops] + [f"{spent.saved_bytes / spent.images / 1e6:.4g}"]
        payload = [f"{spent.floats_down:,}", f"{spent.floats_up:,}"]
        lines.append("| " + " | ".join([method.title, *cells, *payload]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown(meta_backbone(), registry().names()))
