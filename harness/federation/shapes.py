"""A method on `meta`: shapes alone, without weights, images or time, say what it sends and what its steps keep."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.layer_inputs import patch_shape
from fedprompt.core.rng import torch_rng
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.clients import ClientData, SplitName
from fedprompt.methods import Batch, Method, State


class ShapeData(ClientData):
    """Clients with ``size`` images each, of which nothing exists but shapes, on any device, fake ones too."""

    def __init__(self, method: Method, size: int) -> None:
        self.method, self.device, self.num_clients = method, method.backbone.device, method.task.num_clients
        self._size, self.shared = size, ()

    def size(self, client: int, split: SplitName = "train") -> int:  # noqa: ARG002
        return self._size

    def batch(
        self,
        clients: Sequence[int],
        split: SplitName,
        positions: Sequence[Tensor],
        rngs: Sequence[torch.Generator],
        stage: str = "train",
    ) -> Batch:
        vit, needs = self.method.backbone, self.method.needs
        sizes = tuple(len(places) for places in positions)
        rows, side = (len(sizes), max(sizes)), vit.image_size
        images = (sum(sizes), 3, side, side) if "images" in needs else (0,)
        features = (*rows, vit.width) if "features" in needs else (0,)
        depth = hooks.input_depth(type(self.method), self.method.params)
        inputs = (0,) if depth == 0 else (sum(sizes), depth or vit.depth, vit.tokens, vit.width)
        patches = (sum(sizes), *patch_shape(vit)) if hooks.reads_patches(type(self.method)) else (0,)
        return Batch(
            tuple(clients),
            torch.zeros(rows, dtype=torch.int64, device=self.device) if split == "train" else None,
            sizes,
            torch.zeros(images, dtype=torch.uint8, device=self.device),
            torch.zeros(features, device=self.device),
            tuple(rngs),
            stage,
            layer_inputs=torch.zeros(inputs, device=self.device),
            device=self.device,
            patches=torch.zeros(patches, device=self.device),
        )


def on_meta(method: Method) -> Method:
    """The same method, with the same parameters and task, on a backbone without weights."""
    if method.backbone.device.type == "meta":
        return method
    return type(method)(method.params, _without_weights(method.backbone), method.task)


def _without_weights(backbone: FrozenViT) -> FrozenViT:
    weights = {id(tensor): tensor for tensor in (*backbone.parameters(), *backbone.buffers())}
    shapes = {key: torch.empty_like(tensor, device="meta") for key, tensor in weights.items()}
    parameters = {id(tensor) for tensor in backbone.parameters()}
    memo = {key: nn.Parameter(t, requires_grad=False) if key in parameters else t for key, t in shapes.items()}
    return copy.deepcopy(backbone, memo)


def first_visit(method: Method) -> tuple[State, State]:
    """(what the server sends, all that a client holds) at the first visit of client 0, on the backbone's device."""
    device = method.backbone.device
    server = {name: tensor.to(device) for name, tensor in method.init_server(torch_rng(0, "init", "server")).items()}
    received = hooks.download(method, server, [0])
    personal = method.init_personal(torch_rng(0, "init", "personal"), 0)
    return received, {**received, **{name: tensor[None].to(device) for name, tensor in personal.items()}}


def first_batch(method: Method, size: int) -> Batch:
    """``size`` images of client 0."""
    return next(ShapeData(method, size).ordered([0], "train", size, [torch.Generator()]))
