"""The images that a run passes, counted along its schedule without computing anything."""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from fedprompt.backbones.features import CHUNK
from fedprompt.backbones.layer_inputs import kept_images, layer_shape, patch_shape
from fedprompt.backbones.weights import BackboneSpec
from fedprompt.core.progress import track
from fedprompt.datasets import Dataset, Partition, make_partition, parse_partition, trained_classes
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.policy import head_owner, is_finetuned
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.rounds import DIAGNOSED
from fedprompt.harness.federation.schedule import (
    Clients,
    Evaluation,
    draw_cohorts,
    held_stages,
    schedule,
    shared_splits,
)
from fedprompt.harness.federation.stacking import auto_stack
from fedprompt.harness.planning.cost import (
    BEGIN,
    END,
    TRAIN,
    UNSEEN,
    Classes,
    meta_method,
    shape_backbone,
    shape_federation,
)
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import DEFAULT_ENVIRONMENT
from fedprompt.methods import Constants, Diagnostics, Method, SeveralDraws, Stage, Statistics, registry


@dataclass(frozen=True)
class Tally:
    """What a run goes through."""

    images: Mapping[str, int]  # images passed, by kind of pass (see `cost.passes`)
    steps: Mapping[str, int]  # batches of a stack of clients
    clients: Mapping[str, int]  # clients in these batches, or once per evaluation: so often texts of classes are passed
    visits: int  # of a client in a round: as many downloads and uploads
    visitors: int = 0  # clients that ever took part: so many of the visits are a first one
    step: tuple[int, int] = (1, 1)  # clients in the largest training step, and images of all of them
    num_clients: int = 1  # of the federation, whether they take part or not


@dataclass
class Passes:
    """Passes over local data: how many images, in how many steps, and how often a client's class texts."""

    images: int = 0
    steps: int = 0
    clients: int = 0

    def add(self, sizes: np.ndarray, starts: np.ndarray, batch_size: int, texts_once: bool = False) -> None:
        """One pass of clients with ``sizes`` images each, in stacks that begin at ``starts``.

        A step is all clients' of a stack, whoever has images left. Texts are passed in every step or, in an
        evaluation, once.
        """
        if not len(sizes):
            return
        steps = -(-np.maximum.reduceat(sizes, starts) // batch_size)
        self.images += int(sizes.sum())
        self.steps += int(steps.sum())
        self.clients += len(sizes) if texts_once else int((np.diff(starts, append=len(sizes)) * steps).sum())


@dataclass
class Workload:
    """A schedule in passes over the clients' data, whatever a method computes in them."""

    deal: "PartitionSizes"
    batch_size: int
    visits: int = 0
    begun: Passes = field(default_factory=Passes)  # first batches of all that trains
    trained: Passes = field(default_factory=Passes)  # the training data of every visit, once
    diagnosed: Passes = field(default_factory=Passes)  # the first images of every visit
    # The same of every adaptation, by its epochs and whether copies of what is shared train.
    adapted: dict[tuple[int, bool], Passes] = field(default_factory=dict)
    evaluated: Passes = field(default_factory=Passes)
    swept: Passes = field(default_factory=Passes)
    unseen: Passes = field(default_factory=Passes)
    arrivals: int = 0  # of unseen clients, once per reading
    step: tuple[int, int] = (1, 1)  # as in `Tally`

    def __post_init__(self) -> None:
        self.took_part = np.zeros(len(self.deal.train), bool)

    def add_visits(self, cohort: np.ndarray, stack: int) -> None:
        train, starts = self.deal.train[cohort], np.arange(0, len(cohort), stack)
        first = np.minimum(train, self.batch_size)
        self.trained.add(train, starts, self.batch_size)
        self.begun.add(first, starts, self.batch_size)
        self.diagnosed.add(np.minimum(train, DIAGNOSED), starts, DIAGNOSED)
        images = np.add.reduceat(first, starts)
        largest = int(images.argmax())
        clients = min(stack, len(cohort) - int(starts[largest]))
        self.step = max(self.step, (clients, int(images[largest])), key=lambda step: step[1])
        self.visits += len(cohort)
        self.took_part[cohort] = True

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """One reading of the members, or of unseen clients; a stack is split by how long its clients adapt."""
        clients, adaptation = self.deal.members, evaluation.adaptation
        epochs = np.where(self.took_part[clients], adaptation.participant, adaptation.never_sampled)
        if evaluation.unseen:
            clients = self.deal.unseen
            epochs = np.full(len(clients), adaptation.unseen)
        for length in np.unique(epochs).tolist():
            places = np.flatnonzero(epochs == length)
            starts = np.flatnonzero(np.diff(places // evaluation.stack, prepend=-1))
            self._add_group(evaluation, clients[places], starts, length)

    def _add_group(self, evaluation: Evaluation, clients: np.ndarray, starts: np.ndarray, epochs: int) -> None:
        train, unseen, batch_size = self.deal.train[clients], evaluation.unseen, self.batch_size
        if not _differs_in_heads(evaluation.policy):
            predicted = self.swept if evaluation.sweep else self.evaluated
            predicted.add(self.deal.test[clients], starts, batch_size, texts_once=True)
            for split in evaluation.shared:
                self.evaluated.add(np.full(len(clients), self.deal.shared[split]), starts, batch_size, texts_once=True)
        for _ in range(bool(epochs or unseen) + unseen):
            self.begun.add(np.minimum(train, batch_size), starts, batch_size)
        if unseen:
            self.unseen.add(train, starts, batch_size)
            self.arrivals += len(clients)
        if epochs:
            adapted = self.adapted.setdefault((epochs, is_finetuned(evaluation.policy)), Passes())
            adapted.add(train, starts, batch_size)


@dataclass(frozen=True, eq=False)
class Visitor:
    """A method under a protocol, without data and weights: what it does in the passes of a workload."""

    method: Method
    protocol: Protocol
    stack: int

    def tally(self, work: Workload) -> Tally:
        method, epochs = self.method, self.protocol.epochs
        images: Counter[str] = Counter()
        steps: Counter[str] = Counter()
        clients: Counter[str] = Counter()

        def count(kind: str, passes: Passes, times: int = 1) -> None:
            images[kind] += times * passes.images
            steps[kind] += times * passes.steps
            clients[kind] += times * passes.clients

        if isinstance(method, Constants) and type(method).begin_visit is not Constants.begin_visit:
            count(BEGIN, work.begun)
        for stage in hooks.stages(method, epochs):
            count(f"{TRAIN}{stage.name}", work.trained, _epochs([stage]))
        if isinstance(method, Statistics):
            count("end", work.trained)
        if isinstance(method, Diagnostics):
            count("diagnose", work.diagnosed)
        count("evaluate", work.evaluated)
        count("sweep" if isinstance(method, SeveralDraws) else "evaluate", work.swept)
        for adapting, passes in work.adapted.items():
            times = _adaptation_passes(self, *adapting)
            count("adapt", passes, times)
            if hooks.fixed_inputs(method) and times:
                count("inputs", passes)
        for stage in _unseen_stages(self) if work.arrivals else ():
            count(f"{UNSEEN}{stage.name}", work.unseen, _epochs([stage]))
            clients[f"{UNSEEN}{stage.name}{END}"] += work.arrivals
        return Tally(
            +images, +steps, +clients, work.visits, int(work.took_part.sum()), work.step, self.method.task.num_clients
        )


class PartitionSizes:
    """How many images each client and test set of a partition has."""

    def __init__(self, dataset: Dataset, partition: Partition, protocol: Protocol) -> None:
        self.train = np.array([len(rows) for rows in partition.train])
        self.test = np.array([len(rows) for rows in getattr(partition, protocol.evaluated_split)])
        self.shared = {name: len(rows) for name, rows in partition.shared.items()}
        self.unseen: Any = np.array(partition.unseen, np.int64)  # arrays, which a schedule takes as sequences
        self.members: Any = np.setdiff1d(np.arange(partition.num_clients), self.unseen)
        self._cohorts: dict[tuple[int, float], list[Clients]] = {}
        needed = np.zeros(len(dataset.labels), bool)
        needed[partition.all_rows] = True
        self.image_count = int(needed.sum())
        if needed.sum() > len(needed) / 2:  # then a run computes the features of all images
            needed[:] = True
        self.feature_count = int(needed.sum())
        self.feature_key = hashlib.sha256(needed.tobytes()).hexdigest()

    def cohorts(self, protocol: Protocol, seed: int) -> list[Clients]:
        """Who takes part in each round, drawn once for all methods."""
        drawn = protocol.rounds, protocol.participation
        if drawn not in self._cohorts:
            self._cohorts[drawn] = list(draw_cohorts(protocol, seed, self.members))
        return self._cohorts[drawn]


def tally_cells(
    cells: Sequence[Cell], datasets: Mapping[str, Dataset], token_memory: int = DEFAULT_ENVIRONMENT.token_memory
) -> list[Tally]:
    """Count ``cells`` on their real partitions; frozen features that one of them has left are not computed again."""
    deals: dict[tuple[object, ...], PartitionSizes] = {}
    workloads: dict[tuple[object, ...], Workload] = {}
    cached_features: set[tuple[object, ...]] = set()
    tallies = []
    for cell in track(cells, "counting images"):
        dataset, protocol = datasets[cell.dataset], cell.protocol
        dealt = (cell.dataset, cell.partition, cell.seed, protocol.val_fraction)
        if dealt not in deals:
            spec = parse_partition(cell.partition)
            deals[dealt] = PartitionSizes(
                dataset, make_partition(spec, dataset, cell.seed, protocol.val_fraction), protocol
            )
        deal = deals[dealt]
        visiting = visitor(cell, classes_of(cell, dataset), len(deal.train))
        visits = hooks.visit_stack(visiting.method, visiting.stack)
        run = (dealt, protocol, visiting.stack, visits, hooks.is_open_vocabulary(type(visiting.method)))
        if run not in workloads:
            workloads[run] = workload(visiting, cell.seed, deal)
        tally = visiting.tally(workloads[run])
        tally = _with_tokens(tally, visiting.method, deal, token_memory)
        tallies.append(_with_features(tally, cell, visiting.method, deal, cached_features))
    return tallies


def workload(visiting: Visitor, seed: int, deal: PartitionSizes) -> Workload:
    """Follow the schedule of a run; the stacks of a round and of an evaluation are counted as arrays."""
    protocol, stack = visiting.protocol, visiting.stack
    work, shared = Workload(deal, protocol.batch_size), shared_splits(deal.shared, visiting.method)
    for scheduled in schedule(protocol, deal.cohorts(protocol, seed), deal.members, deal.unseen, stack, shared):
        work.add_visits(np.array(scheduled.cohort), hooks.visit_stack(visiting.method, stack))
        for evaluation in scheduled.evaluations:
            work.add_evaluation(evaluation)
    return work


def classes_of(cell: Cell, dataset: Dataset) -> Classes:
    """The classes that are trained on, by name where the method computes text of them."""
    count = trained_classes(parse_partition(cell.partition), dataset)
    return dataset.class_names[:count] if "text" in registry().get(cell.method).needs else count


def visitor(cell: Cell, classes: Classes, clients: int) -> Visitor:
    """Built once for cells that differ in partition and seed alone: these do not change what a pass is."""
    return _visitor(cell.method, tuple(cell.params.items()), cell.backbone, classes, clients, cell.protocol)


@cache
def _visitor(
    name: str,
    params: tuple[tuple[str, Any], ...],
    spec: BackboneSpec,
    classes: Classes,
    clients: int,
    protocol: Protocol,
) -> Visitor:
    backbone, reads = shape_backbone(spec), protocol.head_input
    method = meta_method(name, backbone, classes, clients, protocol.head, reads, **dict(params))
    stack = protocol.stack or auto_stack(method, protocol.batch_size)
    return Visitor(method, protocol, stack)


def _with_features(
    tally: Tally, cell: Cell, method: Method, deal: PartitionSizes, cached: set[tuple[object, ...]]
) -> Tally:
    """``tally`` with the frozen features that the run computes; ``cached`` are those that earlier cells have left."""
    if "features" not in method.needs:
        return tally
    key = (cell.dataset, hooks.feature_depth(type(method), method.params) or method.backbone.depth, deal.feature_key)
    if key in cached:
        return tally
    if cell.backbone.weights != "hub":  # what the hub serves may change, so it is not kept on disk
        cached.add(key)
    count = deal.feature_count
    images = {**tally.images, "features": count}
    return replace(tally, images=images, steps={**tally.steps, "features": math.ceil(count / CHUNK)})


def _with_tokens(tally: Tally, method: Method, deal: PartitionSizes, memory: int) -> Tally:
    """``tally`` with the passes that make frozen tokens: one per image that is kept, else one whenever it is seen."""
    depth = hooks.input_depth(type(method), method.params)
    if depth == 0 and not hooks.reads_patches(type(method)):
        return tally
    shape = layer_shape(method.backbone, depth) if depth != 0 else patch_shape(method.backbone)
    seen = sum(tally.images.values())
    kept = min(kept_images(method.backbone, shape, memory), deal.image_count)
    count = min(seen, kept + round(seen * (1 - kept / deal.image_count)))
    images = {**tally.images, "features": count}
    return replace(tally, images=images, steps={**tally.steps, "features": math.ceil(count / CHUNK)})


def _differs_in_heads(policy: str) -> bool:
    """Whether another reading has passed the images already: what fine-tuned heads read has not changed."""
    return is_finetuned(policy) and head_owner(policy) != "none"


@cache
def _adaptation_passes(visitor: Visitor, epochs: int, shared: bool) -> int:
    """Passes over a client's data while it adapts for so many epochs."""
    return _epochs(held_stages([hooks.adaptation(visitor.method, epochs)], _held(visitor, shared=shared)))


@cache
def _unseen_stages(visitor: Visitor) -> Sequence[Stage]:
    """What an unseen client goes through before it trains its head."""
    return held_stages(hooks.unseen_stages(visitor.method, visitor.protocol.epochs), _held(visitor, unseen=True))


def _held(visitor: Visitor, unseen: bool = False, shared: bool = True) -> Collection[str]:
    """What a client holds, with or without what the server sent."""
    federation = shape_federation(visitor.method, 1, visitor.protocol.batch_size)
    received, theta = federation.theta(federation.start(), federation.members, unseen)
    return theta.keys() if shared else theta.keys() - hooks.sent_tensors(visitor.method, received, 0).keys()


def _epochs(stages: Iterable[Stage]) -> int:
    """Passes over a client's data; a stage that trains nothing makes none."""
    return sum(stage.epochs for stage in stages if stage.rates)
