"""How the golden vectors reach our classes: every hook of a method that the parity tests rely on is called here.

A `Case` is a part of one file under `vectors`; reading one of its arrays is noted in `READ`, so that a test can tell
whether any was forgotten.
"""

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from timm.layers import QuickGELU
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.text import TextTower
from fedprompt.harness.federation.optimiser import learn
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.training import train
from fedprompt.methods import Batch, LearningServer, Method, Stage, State, Task

VECTORS = Path(__file__).parent / "vectors"
Tower = TypeVar("Tower", bound=nn.Module)
CLIENTS, CLASSES = 5, 6  # of a case that does not say whose images they are
Alter = Callable[[type[Method]], type[Method]]  # what a test plants in a method; most plant nothing


def as_shipped(method: type[Method]) -> type[Method]:
    return method


# -- files ------------------------------------------------------------------------------------------------------------


READ: set[str] = set()  # `file/array` of all that was read in this process


@cache
def arrays(file: str) -> dict[str, np.ndarray]:
    """All arrays of ``vectors/file.npz``; a caller must not write to them."""
    with np.load(VECTORS / f"{file}.npz", allow_pickle=False) as archive:
        return dict(archive)


@dataclass(frozen=True)
class Case:
    """The arrays of ``file`` whose names begin with ``prefix``."""

    file: str
    prefix: str = ""

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in arrays(self.file)

    def array(self, name: str) -> np.ndarray:
        READ.add(f"{self.file}/{self.prefix}{name}")
        return arrays(self.file)[self.prefix + name]

    def tensor(self, name: str) -> Tensor:
        return torch.from_numpy(self.array(name).copy())

    def text(self, name: str) -> str:
        return str(self.array(name))

    def json(self, name: str) -> Any:
        return json.loads(self.text(name))

    def numbers(self, name: str) -> list[int]:
        return [int(number) for number in self.array(name)]

    def names(self, start: str) -> list[str]:
        """What follows ``start`` in the names of this case."""
        full = self.prefix + start
        return [name.removeprefix(full) for name in arrays(self.file) if name.startswith(full)]

    def state(self, start: str) -> State:
        return {name: self.tensor(start + name) for name in self.names(start)}


# -- towers -----------------------------------------------------------------------------------------------------------


class TokenTable:
    """A tokeniser that knows the texts of the CLIP file."""

    context_length = 77

    def __init__(self, towers: Case) -> None:
        texts, self.end = towers.array("texts").tolist(), int(towers.array("end"))
        self.tokens = dict(zip(texts, towers.array("text_tokens").tolist(), strict=True))

    def __call__(self, text: str) -> list[int]:
        return [token for token in self.tokens[text] if token >= 0]


@cache
def vit_tower() -> FrozenViT:
    towers = Case("towers_vit")
    shape = towers.json("shape")
    vit = VisionTransformer(
        img_size=shape["img_size"],
        patch_size=shape["patch_size"],
        embed_dim=shape["embed_dim"],
        depth=shape["depth"],
        num_heads=shape["num_heads"],
        mlp_ratio=shape["mlp_hidden"] / shape["embed_dim"],
        norm_layer=partial(nn.LayerNorm, eps=shape["norm_eps"]),
        num_classes=0,
    )
    return _loaded(FrozenViT(vit, "parity", "golden", *_statistics(towers)), towers)


@cache
def clip_tower() -> FrozenCLIP:
    towers = Case("towers_clip")
    shapes = towers.json("shape")
    image, text = shapes["image"], shapes["text"]
    norm: Any = partial(nn.LayerNorm, eps=image["norm_eps"])
    vit = VisionTransformer(
        img_size=image["img_size"],
        patch_size=image["patch_size"],
        embed_dim=image["embed_dim"],
        depth=image["depth"],
        num_heads=image["num_heads"],
        mlp_ratio=image["mlp_ratio"],
        pre_norm=image["pre_norm"],
        norm_layer=norm,
        act_layer=QuickGELU,
        num_classes=0,
    )
    width = text["width"]
    blocks = [
        Block(width, text["num_heads"], text["mlp_ratio"], qkv_bias=True, norm_layer=norm, act_layer=QuickGELU)
        for _ in range(text["depth"])
    ]
    tower = TextTower(
        TokenTable(towers),
        nn.Embedding(len(towers.array("token_ids")), width),
        nn.Parameter(torch.zeros(text["context_length"], width)),
        blocks,
        norm(width),
        nn.Linear(width, shapes["dim"], bias=False),
    )
    projection = nn.Linear(image["embed_dim"], shapes["dim"], bias=False)
    scale = float(towers.array("logit_scale"))
    return _loaded(FrozenCLIP(vit, projection, tower, scale, "parity", "golden", *_statistics(towers)), towers)


def _statistics(towers: Case) -> tuple[list[float], list[float]]:
    return towers.array("mean").tolist(), towers.array("std").tolist()


def _loaded(tower: Tower, towers: Case) -> Tower:
    tower.double().load_state_dict(towers.state("state/"))
    return tower


# -- methods and batches ----------------------------------------------------------------------------------------------


@dataclass
class Lab:
    """A method built for a case, in double precision, and what to call it with."""

    case: Case
    method: Method

    @property
    def towers(self) -> Case:
        return Case("towers_clip" if isinstance(self.method.backbone, FrozenCLIP) else "towers_vit")

    def sizes(self) -> list[int]:
        return self.case.numbers("sizes") if "sizes" in self.case else self.towers.numbers("sizes")

    def batch(
        self,
        rows: Sequence[int] | None = None,
        sizes: Sequence[int] | None = None,
        clients: Sequence[int] | None = None,
        stage: str = "train",
    ) -> Batch:
        """``rows`` are images of the file, client after client; without them, the first ones."""
        sizes = self.sizes() if sizes is None else sizes
        rows = range(sum(sizes)) if rows is None else rows
        packed = self.case.tensor("labels")[list(rows)]
        labels = torch.zeros(len(sizes), max(sizes), dtype=torch.int64)
        images = self.towers.tensor("images")[list(rows)]
        depth = self.hook("feature_depth", self.method.params) or None
        frozen = self.method.backbone.cls(images, stop=depth)
        batch = Batch(
            tuple(range(len(sizes)) if clients is None else clients),
            labels,
            tuple(sizes),
            images,
            torch.empty(0),
            [torch.Generator().manual_seed(client) for client in range(len(sizes))],
            stage,
        )
        patches = torch.empty(0)
        if "spatial tokens" in self.method.needs and isinstance(self.method.backbone, FrozenCLIP):
            patches = self.method.backbone.spatial(images)
        return replace(batch, given_labels=batch.pad(packed), features=batch.pad(frozen), patches=patches)

    # -- hooks of methods: the doors through which all vectors go ----------------------------------------------------

    def hook(self, name: str, *args: Any) -> Any:
        """What the hook returns; nothing where the method has none of this name."""
        return getattr(self.method, name)(*args) if hasattr(self.method, name) else {}

    def training(self, theta: State, batch: Batch) -> Batch:
        """``batch`` as a step of round 2 sees it."""
        return replace(batch, start={**theta, **self.hook("begin_visit", theta, 2)})

    def logits(self, theta: State, batch: Batch) -> Tensor:
        """Packed, (n, C)."""
        with torch.no_grad():
            evaluated = replace(batch, start={**theta, **self.hook("begin_evaluation", theta, [])}, stage="evaluate")
            return batch.pack(self.method.predict(theta, evaluated))

    def gradients(self, theta: State, batch: Batch, names: Sequence[str]) -> tuple[Tensor, State]:
        """The loss of each client, and its gradient; one that is missing counts as zero."""
        leaves = {name: theta[name].clone().requires_grad_() for name in names}
        loss = self.method.loss({**theta, **leaves}, self.training(theta, batch))
        found = torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True)
        grads = {
            name: torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(leaves.items(), found, strict=True)
        }
        return loss.detach(), grads

    def visit(
        self,
        theta: State,
        stages: Sequence[Stage],
        epochs: Sequence[Sequence[Batch]],
        sgd: dict[str, float],
        round_: int = 2,
    ) -> State:
        """What the clients hold after training; ``epochs`` has the batches of each epoch, of all stages in order."""
        protocol = Protocol(momentum=sgd["momentum"], weight_decay=sgd["weight_decay"])
        data: Any = _Replay(iter(epochs))
        clients = epochs[0][0].clients
        return train(self.method, theta, stages, data, clients, protocol, (0, round_))[0]

    def visit_stages(self, epochs: int) -> Sequence[Stage]:
        stages: Sequence[Stage] = self.hook("stages", epochs)
        return stages

    def received(self, server: State, clients: Sequence[int]) -> State:
        everything = {name: tensor.expand(len(clients), *tensor.shape) for name, tensor in server.items()}
        sent: State = self.hook("download", server, clients) or everything
        return {name: tensor.clone() for name, tensor in sent.items()}

    def aggregated(
        self, server: State, theta: State, received: State, weights: Tensor, clients: Sequence[int]
    ) -> State:
        """The server's state after ``theta`` was trained from ``received``."""
        uploads = self.method.upload(theta, received)
        new = self.method.aggregate(server, uploads, weights, clients)
        if isinstance(self.method, LearningServer):
            gradients = self.method.server_gradients(server, uploads, weights, clients)
            new = {**new, **learn(self.method, server, gradients, {}, clients, 1.0)[0]}
        return new

    def projected(self, step: Tensor, name: str, theta: State, round_: int) -> Tensor:
        """What the method makes of an optimiser's step in a visit that begins with ``theta``."""
        start = {**theta, **self.hook("begin_visit", theta, round_)}
        projected: Tensor = self.hook("project_step", name, step, start)
        return projected

    def first_server(self) -> State:
        return self.method.init_server(torch.Generator().manual_seed(0))

    def first_personal(self, client: int) -> State:
        return self.method.init_personal(torch.Generator().manual_seed(0), client)

    def held(self, theta: State, kind: str) -> Tensor:
        """FedMGP's groups of each client, the server's slots in their places."""
        groups: Tensor = self.hook("held", theta, kind)
        return groups

    def drawn_groups(self, directions: Tensor, count: int, rng: torch.Generator) -> Tensor:
        """Which of FedMGP's groups ``count`` clients send, (count, exchanged): groups whose first two coordinates are
        ``directions``, after a visit that began with slots in direction (1, 0)."""
        slot, params = torch.tensor([1.0, 0.0], dtype=torch.float64), self.method.params
        theta: State = {"fresh": torch.zeros(count, 1)}
        for kind in ("text", "visual"):
            theta[kind] = directions[None, :, None].expand(count, -1, -1, -1)
            theta[f"slots.{kind}"] = theta[kind][:, : params.exchanged]
            theta[f"sent.{kind}"] = slot.expand(count, params.exchanged, 1, -1)
        theta["drawn"] = torch.arange(params.exchanged).expand(count, -1)
        theta["noise"] = torch.zeros(count, params.groups)
        labels = torch.zeros(count, 1, dtype=torch.int64)
        images, sizes = torch.zeros(count, 3, 1, 1, dtype=torch.uint8), (1,) * count
        batch = Batch(tuple(range(count)), labels, sizes, images, torch.empty(0), [rng] * count)
        theta |= self.hook("observe", theta, batch)
        drawn: Tensor = self.hook("end_stage", Stage("train", {}, 1), theta)["drawn"]
        return drawn


class _Replay:
    """Client data that is one list of batches per epoch."""

    device = torch.device("cpu")

    def __init__(self, epochs: Iterator[Sequence[Batch]]) -> None:
        self.epochs = epochs

    def epoch(self, *asked: Any) -> Iterator[Batch]:
        """As `ClientData.epoch` is called: clients, batch size, orders, generators, stage."""
        for batch in next(self.epochs):
            yield replace(batch, stage=asked[4])


def lab(case: Case, alter: Alter = as_shipped, counts: Tensor | None = None, **changes: Any) -> Lab:
    """The method that ``case`` names, with its parameters and ``changes``; ``alter`` may plant something in it.

    ``counts`` (clients, classes) are the clients' images, where the case does not say.
    """
    module, _, name = case.text("class").partition(":")
    cls: type[Method] = getattr(importlib.import_module(module), name)
    if counts is None and "train_counts" in case:
        counts = case.tensor("train_counts")
    head = case.text("head") if "head" in case else "global"
    return Lab(case, build(alter(cls), {**case.json("params"), **changes}, head, counts))


def build(cls: type[Method], params: dict[str, Any], head: str = "global", counts: Tensor | None = None) -> Method:
    """``cls`` on the towers that it needs; without ``counts`` every client has one image of each class."""
    counts = torch.ones(CLIENTS, CLASSES) if counts is None else counts
    if "text" in cls.needs:
        names = tuple(Case("towers_clip").array("class_names").tolist())
        return cls(cls.Params(**params), clip_tower(), Task(names, counts, "none"))
    return cls(cls.Params(**params), vit_tower(), Task(tuple(map(str, range(counts.shape[1]))), counts, head))


def stacked(states: Sequence[State]) -> State:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def gap(ours: Tensor, theirs: Tensor) -> float:
    """The largest absolute difference."""
    if ours.shape != theirs.shape:
        raise ValueError(f"shapes differ: {tuple(ours.shape)} and {tuple(theirs.shape)}")
    return float((ours.detach().double() - theirs.double()).abs().max())
