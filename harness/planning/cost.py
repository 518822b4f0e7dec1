"""What a method costs, counted on shapes alone: no weights, no images, hardly any time.

On `meta` everything goes through the code of a real visit. FLOPs are those of matrix products, convolutions and
attention, a multiplication and an addition counting two; norms, softmax and activations are left out, as is usual.
"""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.weights import BackboneSpec, load_backbone
from fedprompt.core.fields import build
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.counting import counted, kept_for_backward
from fedprompt.harness.federation.payload import traffic
from fedprompt.harness.federation.policy import PAPER, head_owner
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.harness.federation.schedule import held_stages
from fedprompt.harness.federation.shapes import ShapeData
from fedprompt.harness.federation.training import train
from fedprompt.methods import Batch, Method, Stage, Stages, State, Task, registry

VIT_BASE = "vit_base_patch16_224"
TRAIN = "train "  # how kinds of training steps begin; the stage follows
UNSEEN, END = "unseen ", " end"  # likewise of clients kept out; END follows the stage where that is closed
BEGIN = "begin"  # the kind of pass that computes what is constant in a visit; it passes no images
Classes = int | tuple[str, ...]  # how many, or their names where text is computed of them
ROUND = 2  # some methods do more from the second round on


@dataclass(frozen=True)
class Cost:
    """One batch of each of ``clients`` clients. Divide FLOPs and bytes saved by ``images`` for those of an image.

    What text costs depends on clients and steps, not on images, and is counted separately.
    """

    images: int
    flops: dict[str, int]  # by kind of pass, see `passes`
    saved_bytes: int  # kept for the backward pass, without weights and inputs, in the stage that keeps most
    floats_down: int  # of one client in a round, measured
    floats_up: int
    bytes_down: int
    bytes_up: int
    client_flops: Mapping[str, int] = field(default_factory=dict)  # of these, what one client costs without any image
    client_bytes: int = 0  # likewise of the bytes saved: texts of classes, the same for any number of images
    first_bytes_down: int = 0  # of one client in its first round: a server may have less to send by then

    @property
    def train_flops(self) -> int:
        """A step in every stage: what an image costs in one local epoch (of each stage)."""
        return sum(flops for kind, flops in self.flops.items() if kind.startswith(TRAIN))


def meta_backbone(name: str = VIT_BASE, image_size: int = 224) -> FrozenViT:
    """The architecture without weights."""
    return load_backbone(BackboneSpec(name, "random", image_size), device="meta")


@lru_cache(maxsize=2)
def shape_backbone(spec: BackboneSpec, device: str = "meta") -> FrozenViT:
    """The architecture of ``spec`` with random weights, or with none on `meta`; costs do not depend on them."""
    return load_backbone(replace(spec, weights="random"), device=device)


def shape_federation(method: Method, clients: int, batch_size: int, **recipe: Any) -> Federation:
    """A federation whose visits are one step per stage, on the device of the method's backbone.

    ``recipe`` are fields of the protocol by which a step costs more or less.
    """
    protocol = Protocol(epochs=1, batch_size=batch_size, stack=clients, **recipe)
    return Federation(method, ShapeData(method, batch_size), protocol, seed=0, members=range(clients))


def passes(federation: Federation, state: FederationState, theta: State) -> dict[str, Callable[[], Any]]:
    """Every kind of pass over a batch of each client, as the harness makes it, to be counted or timed.

    `begin` opens a visit; `train STAGE` are its steps; `end` and `diagnose` close it; `evaluate` and `sweep` predict
    (with the method's own number of draws, with all of them); `adapt` are steps of clients that train their heads
    alone, on `inputs` that may be computed once; `unseen STAGE` are steps before that of clients kept out, and
    `unseen STAGE end` is what follows the last of them; `features` are frozen features or tokens, which are kept.
    """
    method, data, members, protocol = federation.method, federation.data, federation.members, federation.protocol
    rngs = [torch.Generator() for _ in members]
    batch = next(data.ordered(members, "train", protocol.batch_size, rngs))
    headed = hooks.fixed_inputs(method)
    constants = hooks.begin_visit(method, theta, ROUND)
    unseen_stages = hooks.unseen_stages(method, 1)
    unseen = federation.theta(state, members, unseen=True)[1] if unseen_stages else {}
    close = partial(hooks.end_stage, method)
    unclosed: Any = copy.copy(method)
    if isinstance(method, Stages):
        unclosed.end_stage = lambda *_: {}

    def visit(
        held: State, stages: Sequence[Stage], inputs: Sequence[Tensor] | None = None, by: Method = method
    ) -> State:
        key = (0, ROUND)
        return train(by, held, stages, data, members, protocol, key, head_inputs=inputs, constants=constants)[0]

    def step(stage: Stage) -> State:
        return visit(theta, [replace(stage, epochs=1)])

    def adapt() -> State:
        inputs = [torch.zeros(size, method.backbone.width, device=data.device) for size in batch.sizes]
        stages = held_stages([hooks.adaptation(method, 1)], theta)
        return visit(theta, stages, inputs if headed else None)

    def unseen_step(stage: Stage) -> State:
        return visit(unseen, held_stages([stage], unseen), by=unclosed)

    def evaluated() -> Batch:
        return replace(batch, start=hooks.begin_evaluation(method, theta, [batch]))

    def features() -> Tensor | None:
        if "features" not in method.needs and not batch.layer_inputs.numel() and not batch.patches.numel():
            return None
        shape = (sum(batch.sizes), 3, *[method.backbone.image_size] * 2)
        images = torch.zeros(shape, dtype=torch.uint8, device=data.device)
        if batch.layer_inputs.numel():
            return method.backbone.layer_inputs(images, batch.layer_inputs.shape[1])
        if batch.patches.numel():
            assert isinstance(method.backbone, FrozenCLIP)
            return method.backbone.spatial(images)
        return method.backbone.cls(images, stop=hooks.feature_depth(type(method), method.params))

    return {
        BEGIN: lambda: hooks.begin_visit(method, theta, ROUND),
        **{f"{TRAIN}{stage.name}": partial(step, stage) for stage in hooks.stages(method, 2)},
        "end": lambda: hooks.end_visit(method, theta, [batch]),
        "diagnose": lambda: hooks.diagnostics(method, theta, replace(batch, stage="diagnose")),
        "evaluate": torch.no_grad()(lambda: method.predict(theta, evaluated())),
        "sweep": torch.no_grad()(lambda: hooks.predictions(method, theta, evaluated())),
        "adapt": adapt,
        "inputs": torch.no_grad()(lambda: headed.head_inputs(theta, batch) if headed else None),
        **{f"{UNSEEN}{stage.name}": partial(unseen_step, stage) for stage in unseen_stages},
        **{f"{UNSEEN}{stage.name}{END}": partial(close, stage, unseen) for stage in unseen_stages},
        "features": torch.no_grad()(features),
    }


def cost(
    method: Method, clients: int = 1, batch_size: int = 64, kinds: Collection[str] | None = None, **recipe: Any
) -> Cost:
    """Costs of ``method`` with ``clients`` in one stack, best with a `meta_backbone`; its task has as many or more.

    What a visit is made of is always counted; of the other kinds only ``kinds``, if they are named. ``recipe`` is as
    in `shape_federation`.
    """
    if "text" not in method.needs:
        return _count(method, clients, batch_size, kinds, recipe)
    # The part that does not grow with images: twice one image's step minus that of two. Counted twice, because texts
    # that a method computes once per run (a reference, a template) are there from the second time on.
    _, one, two = (_count(method, clients, images, kinds, recipe) for images in (1, 1, 2))
    spent = _count(method, clients, batch_size, kinds, recipe)
    flops = {kind: (2 * one.flops[kind] - two.flops[kind]) // clients for kind in spent.flops}
    return replace(
        spent,
        client_flops={**spent.client_flops, **{kind: count for kind, count in flops.items() if count > 0}},
        client_bytes=max(0, 2 * one.saved_bytes - two.saved_bytes) // clients,
    )


def _count(
    method: Method, clients: int, batch_size: int, kinds: Collection[str] | None, recipe: Mapping[str, Any]
) -> Cost:
    federation = shape_federation(method, clients, batch_size, **recipe)
    state = federation.start()
    _, theta = federation.theta(state, federation.members)
    flops, saved = {}, [0]
    for kind, work in passes(federation, state, theta).items():
        visit = kind.startswith(TRAIN) or kind == "end"
        if kinds is None or visit or kind.removesuffix(END) in (BEGIN, *kinds):
            with counted() as counter, kept_for_backward(method.backbone, theta) as storage_bytes:
                work()
            flops[kind] = counter.flops
            if visit:
                saved.append(sum(storage_bytes.values()))
    sent = traffic(method)
    begun = {kind: n // clients for kind, n in flops.items() if n and (kind == BEGIN or kind.endswith(END))}
    return Cost(
        images=clients * batch_size,
        flops=flops,
        saved_bytes=max(saved),
        floats_down=sent.down.floats,
        floats_up=sent.up.floats,
        bytes_down=sent.down.bytes,
        bytes_up=sent.up.bytes,
        client_flops=begun,
        first_bytes_down=sent.first_down.bytes,
    )


def meta_method(
    name: str,
    backbone: FrozenViT,
    classes: Classes = 100,
    clients: int = 1,
    head: str = PAPER,
    head_input: str = "raw",
    **params: Any,
) -> Method:
    """A registered method on shapes: ``classes``, by number or by name, every client with an image of each."""
    cls = registry().get(name)
    owner = head_owner(registry().resolve(name)[1] or cls.paper_policy) if head == PAPER else head
    names = tuple(map(str, range(classes))) if isinstance(classes, int) else classes
    task = Task(names, torch.ones(clients, len(names), dtype=torch.int64), owner, head_input=head_input)
    built: Any = build(cls.Params, params, name)
    return cls(built, backbone, task)
