"""What the properties are made of: comparisons that name the tensor, and ways to watch a method at work."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedprompt.core.rng import torch_rng
from fedprompt.harness.conformance.toy import TRAIN_SIZES, toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.clients import SplitName
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.methods import Batch, Method, State

Params = Mapping[str, Any] | None

ALL = tuple(range(len(TRAIN_SIZES)))  # every client of the toy
HOOKS_WITH_STATES = (
    *("begin_visit", "loss", "observe", "project_step", "end_visit", "diagnostics", "begin_evaluation", "predict"),
    *("download", "unseen_download", "upload", "aggregate", "server_gradients"),
)


class ConformanceError(AssertionError):
    """A property does not hold; the message is one line that names the tensor or the number."""


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise ConformanceError(reason)


def cloned(tensors: State) -> State:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def flat(state: FederationState) -> State:
    """All tensors of a federation under one level of names; the tensors themselves, not copies."""
    named = {f"server {name}": tensor for name, tensor in state.server.items()}
    named |= {f"the server's optimiser {name}": tensor for name, tensor in state.optimiser.items()}
    for kind, clients in (("personal", state.personal), ("local", state.local)):
        for client, tensors in sorted(clients.items()):
            named |= {f"{kind} {name} of client {client}": tensor for name, tensor in tensors.items()}
    return named


def same_layout(expected: State, actual: State, when: str) -> None:
    odd = sorted(expected.keys() ^ actual.keys())
    require(not odd, f"{when}: {', '.join(odd)} appears or vanishes")
    for name, tensor in expected.items():
        a, b = (tensor.shape, tensor.dtype), (actual[name].shape, actual[name].dtype)
        require(a == b, f"{when}: {name} was {_layout(*a)} and is {_layout(*b)}")


def same_bits(expected: State, actual: State, when: str) -> None:
    same_layout(expected, actual, when)
    for name, tensor in expected.items():
        if not torch.equal(tensor, actual[name]):
            raise ConformanceError(f"{when}: {name} differs by up to {gap(tensor, actual[name]):.2g}")


def close(expected: State, actual: State, when: str, tolerance: float) -> None:
    """``tolerance`` is relative to the larger of 1 and the tensor's largest entry."""
    same_layout(expected, actual, when)
    for name, tensor in expected.items():
        if tensor.numel():
            allowed = tolerance * max(1.0, float(tensor.double().abs().max()))
            difference = gap(tensor, actual[name])
            require(difference <= allowed, f"{when}: {name} differs by up to {difference:.2g}, allowed {allowed:.2g}")


def gap(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).abs().max())


def _layout(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{tuple(shape)} {str(dtype).removeprefix('torch.')}"


def after_rounds(
    method: type[Method], params: Params, rounds: int, **protocol: Any
) -> tuple[Federation, FederationState]:
    """The toy after ``rounds`` of one epoch in which every client took part."""
    federation = toy_federation(method, params, **{"participation": 1.0, "epochs": 1, **protocol})
    state = federation.start()
    for _ in range(rounds):
        federation.step(state)
    return federation, state


def watch(method: Method, hook: str, see: Callable[[tuple[Any, ...], Any], None]) -> None:
    """Call ``see`` with the arguments and the result of every later call of a hook of this instance, if it has it."""
    original = getattr(method, hook, None)
    if original is None:  # of a mixin that the method does not derive from
        return

    def watched(*args: Any) -> Any:
        result = original(*args)
        see(args, result)
        return result

    setattr(method, hook, watched)


def trained_names(method: Method) -> set[str]:
    return {name for stage in hooks.stages(method, 1) for name in stage.rates}


def first_rows(federation: Federation, clients: Sequence[int], sizes: Sequence[int], stage: str, theta: State) -> Batch:
    """The first ``sizes`` samples of ``clients``, with noise that is the same at every call.

    ``theta`` is what the clients held when the visit or the evaluation began.
    """
    rngs = [torch_rng(federation.seed, "noise", "conformance", client) for client in clients]
    split: SplitName = "test" if stage == "evaluate" else "train"
    positions = [
        torch.arange(min(size, federation.data.size(c, split))) for c, size in zip(clients, sizes, strict=True)
    ]
    if stage == "evaluate":
        start = hooks.begin_evaluation(federation.method, theta, federation.data.ordered(clients, "train", 8))
    else:
        start = {**theta, **hooks.begin_visit(federation.method, theta, 2)}
    return dataclasses.replace(federation.data.batch(clients, split, positions, rngs, stage), start=start)


def check_logits(federation: Federation, theta: State, clients: Sequence[int], who: str) -> None:
    """Scores are finite and there is one for every class."""
    with torch.no_grad():
        batch = first_rows(federation, clients, [8] * len(clients), "evaluate", theta)
        scores = federation.method.predict(theta, batch)
    expected = (*batch.mask.shape, federation.method.task.num_classes)
    require(tuple(scores.shape) == expected, f"{who}: logits are {tuple(scores.shape)}, not (K, B, C) = {expected}")
    require(scores.is_floating_point(), f"{who}: logits are {scores.dtype}, of which no probabilities can be made")
    bad = int((~torch.isfinite(scores[batch.mask])).sum())
    require(bad == 0, f"{who}: {bad} of {scores[batch.mask].numel()} logits are not finite")


@contextmanager
def one_thread() -> Iterator[None]:
    """Tensors of the toy are too small to share out: more threads than idle cores make it many times slower."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def double_precision() -> Iterator[None]:
    """Draws and constants made inside are float64, so that what remains of a difference is a fault, not rounding."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
