"""Speed as ratios: each group does comparable work in several ways, which take turns in one process on one thread.

CPU time is measured, not wall-clock time, so that other work on the machine matters little; medians of the turns count.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plain_loop import round_of

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.weights import BackboneSpec, load_backbone
from fedprompt.core.files import write_atomic
from fedprompt.core.memory import keep_freed_memory
from fedprompt.core.progress import track
from fedprompt.core.rng import numpy_rng, torch_rng
from fedprompt.datasets import Dataset, Partition
from fedprompt.harness.federation.assembly import make_federation
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.rounds import Federation
from fedprompt.harness.federation.schedule import evaluations_now
from fedprompt.harness.measuring.counts import Counts
from fedprompt.harness.measuring.evaluation import evaluate_due, score_clients
from fedprompt.harness.planning.cost import cost, meta_method, shape_backbone
from fedprompt.methods import State, registry
from fedprompt.methods.fedvpt_d import FedVPTDeep

Work = Callable[[], object]
MICRO = BackboneSpec("micro-vit", "random", 32)  # speed does not depend on what the weights are
TINY = BackboneSpec("vit_tiny_patch16_224", "random", 128)
CLASSES = 20
FLAGSHIP = {"pfedbayespt": 2.0, "pfedbayespt-g": 1.7, "pfedbayespt-d": 1.4}  # aims: a round over FedVPT-D's
PLAIN = {32: 1.7, 16: 2.2, 4: 4.0, 2: 6.0}  # aims: a plain loop over a stacked round, by batch size


@dataclass(frozen=True)
class Line:
    """One ratio of the table; ``at_most`` says on which side of ``aim`` it should be."""

    work: str
    reached: float
    aim: float
    at_most: bool = True

    @property
    def holds(self) -> bool:
        return self.reached <= self.aim if self.at_most else self.reached >= self.aim


@cache
def federation(
    method: str,
    spec: BackboneSpec = MICRO,
    clients: int = 20,
    images: int = 40,
    batch_size: int = 16,
    **params: Any,
) -> Federation:
    """``clients`` with ``images`` random pictures each to train on and as many to be tested on, all in one stack."""
    vit, dataset = _backbone(spec), _pictures(2 * clients * images, spec.image_size)
    rows = np.arange(2 * clients * images).reshape(2, clients, images)
    partition = Partition(tuple(rows[0]), tuple(rows[1]), tuple(np.empty(0, np.int64) for _ in range(clients)))
    protocol = Protocol(rounds=1, epochs=1, batch_size=batch_size, stack=clients, head="global")
    return make_federation(registry().get(method), {"length": 2, **params}, vit, dataset, partition, protocol)


@cache
def _backbone(spec: BackboneSpec) -> FrozenViT:
    return load_backbone(spec)


@cache
def _pictures(count: int, size: int) -> Dataset:
    rng = numpy_rng(0, "data", "speed")
    images = rng.integers(0, 256, (count, 3, size, size), dtype=np.uint8)
    names = tuple(map(str, range(CLASSES)))
    labels = rng.integers(0, CLASSES, count)
    return Dataset("pictures", images, labels, np.zeros(count, np.int64), np.zeros(count, bool), names, ("",), "")


class LocalPrompts(FedVPTDeep):
    """FedVPT-D with nothing shared, so that a round changes its cohort alone."""

    name, title = "local-prompts", "Local prompts"

    def init_server(self, rng: torch.Generator) -> State:  # noqa: ARG002
        return {}

    def init_personal(self, rng: torch.Generator, client: int) -> State:  # noqa: ARG002
        return {**self._head(rng), **self.init_prompts(rng)}


def crowd(clients: int, selected: int = 5, images: int = 40, tested: int = 4) -> Work:
    """A round of ``selected`` clients out of ``clients``, and the evaluation of all; they hold the same pictures."""
    vit, dataset = _backbone(MICRO), _pictures(images + tested, MICRO.image_size)
    train, test = ((part,) * clients for part in np.split(np.arange(images + tested), [images]))
    partition = Partition(train, test, (np.empty(0, np.int64),) * clients)
    rules = Protocol(
        rounds=10**6,
        epochs=1,
        batch_size=16,
        stack=20,
        head="local",
        participation=selected / clients,
        never_sampled="as_is",
        eval_every=1,
    )
    ready, counts = make_federation(LocalPrompts, {"length": 2}, vit, dataset, partition, rules), Counts()
    state, rounds = ready.start(), ready.schedule()
    evaluate_due(ready, state, evaluations_now(rules, 0, ready.members, (), rules.stack), counts)

    def work() -> object:
        scheduled = next(rounds)
        ready.step(state, scheduled.cohort)
        return evaluate_due(ready, state, scheduled.evaluations, counts)

    return work


def a_round(ready: Federation) -> object:
    return ready.step(ready.start())


def an_evaluation(ready: Federation, sweep: bool = False) -> object:
    state = ready.start()
    return score_clients(ready, state, ready.theta(state, ready.members)[1], ready.members, "test", sweep)


def passes_only(ready: Federation) -> Work:
    """Forward and backward of the batches of a round, and nothing else."""
    method, members = ready.method, ready.members
    theta = ready.theta(ready.start(), members)[1]
    orders = [torch_rng(0, "batches", 1, client) for client in members]
    batches = list(ready.data.epoch(members, ready.protocol.batch_size, orders, orders, "train"))

    def work() -> object:
        for batch in batches:
            leaves = {name: theta[name].detach().requires_grad_() for name in method.rates()}
            torch.autograd.grad(method.loss({**theta, **leaves}, batch).sum(), list(leaves.values()), allow_unused=True)
        return batches

    return work


def seconds(ways: Mapping[str, Work], turns: int, title: str) -> dict[str, float]:
    """Median CPU seconds of each way; the first turn warms up."""
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for _ in track(range(turns + 1), title):
        for way, work in ways.items():
            begun = time.process_time()
            work()
            spent[way].append(time.process_time() - begun)
    return {way: statistics.median(values[1:]) for way, values in spent.items()}


def compare(turns: int = 5) -> Iterator[Line]:
    """The table, line by line as it is measured."""
    torch.set_num_threads(1)
    keep_freed_memory()
    small: dict[str, Any] = {"spec": TINY, "clients": 4, "images": 32}
    for name, sizes in (("micro-vit", {}), ("ViT-Tiny, 128 px", small)):
        yield from _rounds(name, sizes, turns)
    yield from _evaluations(turns)
    for batch_size, aim in PLAIN.items():
        yield _plain(batch_size, aim, turns)
    yield _share_of_matmul(turns)
    yield _many_clients(turns)


def _rounds(name: str, sizes: dict[str, Any], turns: int) -> Iterator[Line]:
    ready = {method: federation(method, **sizes) for method in ("fedvpt-d", *FLAGSHIP)}
    ways: dict[str, Work] = {method: partial(a_round, fed) for method, fed in ready.items()}
    ways["passes"] = passes_only(ready["fedvpt-d"])
    spent = seconds(ways, turns, f"rounds, {name}")
    for method, aim in FLAGSHIP.items():
        yield Line(f"a round of {method} over FedVPT-D's, {name}", spent[method] / spent["fedvpt-d"], aim)
    outside = 1 - spent["passes"] / spent["fedvpt-d"]
    yield Line(f"share of a FedVPT-D round outside forward and backward, {name}", outside, 0.02 if sizes else 0.05)


def _evaluations(turns: int) -> Iterator[Line]:
    one, five, ten = (federation("pfedbayespt", samples=draws) for draws in (1, 5, 10))
    ways = {
        "one": partial(an_evaluation, one),
        "five": partial(an_evaluation, five),
        "ten": partial(an_evaluation, ten),
        "sweep": partial(an_evaluation, ten, sweep=True),
    }
    spent = seconds(ways, turns, "evaluations, micro-vit")
    yield Line("evaluation with V = 5 over one draw, micro-vit", spent["five"] / spent["one"], 5.0)
    yield Line("evaluation with V = 1..10 over V = 10, micro-vit", spent["sweep"] / spent["ten"], 1.05)


def _plain(batch_size: int, aim: float, turns: int) -> Line:
    ready = federation("fedvpt-d", batch_size=batch_size)
    server = ready.start().server
    ways: dict[str, Work] = {
        "stacked": partial(a_round, ready),
        "plain": partial(round_of, ready, server, ready.members),
    }
    spent = seconds(ways, turns, f"a plain loop, batches of {batch_size}")
    work = f"a plain loop over a FedVPT-D round, micro-vit, batches of {batch_size}"
    return Line(work, spent["plain"] / spent["stacked"], aim, at_most=False)


def _share_of_matmul(turns: int) -> Line:
    """Counted FLOPs of a training step, per second, over those of a large matrix product."""
    ready, side = federation("fedvpt-d", TINY, clients=2, images=16), 1024
    matrix = torch.rand(side, side)
    spent = seconds({"step": passes_only(ready), "matmul": lambda: matrix @ matrix}, turns, "a step and a matmul")
    counted = cost(meta_method("fedvpt-d", shape_backbone(TINY), CLASSES, length=2), 1, 16, ())
    speed = 32 * counted.train_flops / counted.images / spent["step"]
    share = speed / (2 * side**3 / spent["matmul"])
    return Line("ViT-Tiny training step at 128 px, share of the measured matmul speed", share, 0.6, at_most=False)


def _many_clients(turns: int) -> Line:
    """A first evaluation counts everybody; from then on, only who changed."""
    ways = {"few": crowd(100), "many": crowd(10_000)}
    spent = seconds(ways, turns, "100 and 10,000 clients")
    work = "a round of five and the evaluation of who changed, 10,000 clients over 100, nothing shared"
    return Line(work, spent["many"] / spent["few"], 1.2)


def save(lines: list[Line], folder: Path) -> Path:
    """The table as JSON, with the machine that it was measured on."""
    folder.mkdir(parents=True, exist_ok=True)
    table = [{**asdict(line), "holds": line.holds} for line in lines]
    machine = {"machine": platform.machine(), "torch": torch.__version__, "threads": 1}
    path = folder / "ratios.json"
    write_atomic(path, json.dumps({**machine, "lines": table}, indent=1).encode())
    return path
