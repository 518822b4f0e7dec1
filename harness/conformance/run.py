"""Properties of whole runs: what may not depend on order, on neighbours in time, or on how the run was carried out."""

import io
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedprompt.harness.conformance.lab import (
    ALL,
    HOOKS_WITH_STATES,
    Params,
    after_rounds,
    cloned,
    flat,
    require,
    same_bits,
    watch,
)
from fedprompt.harness.conformance.toy import toy_backbone_for, toy_federation
from fedprompt.harness.federation.policy import head_owner
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.harness.measuring.evaluation import Record, adapt, evaluate
from fedprompt.methods import Batch, Method, State


def frozen_backbone(method: type[Method], params: Params) -> None:
    """the backbone is bit for bit what it was, takes no gradient and stays in evaluation mode"""
    backbone = toy_backbone_for(method)

    def tensors() -> State:
        return dict([*backbone.named_parameters(), *backbone.named_buffers()])

    before = cloned(tensors())
    federation = toy_federation(method, params, backbone=backbone, participation=1.0)
    state = federation.start()
    federation.step(state)
    evaluate(federation, state)
    same_bits(before, tensors(), "after a round")
    thawed = [name for name, parameter in backbone.named_parameters() if parameter.requires_grad]
    require(not thawed, f"{len(thawed)} backbone parameters take a gradient, first {', '.join(thawed[:1])}")
    require(not any(module.training for module in backbone.modules()), "a backbone module is in training mode")


def arguments_untouched(method: type[Method], params: Params) -> None:
    """no hook changes the states it is given in place"""
    federation, state = after_rounds(method, params, 0)
    for hook in HOOKS_WITH_STATES:
        if hasattr(federation.method, hook):  # many are of mixins
            _guard(federation.method, hook)
    for _ in range(2):
        federation.step(state)
        evaluate(federation, state)
    adapt(federation, state, ALL, 1)


def _guard(method: Method, hook: str) -> None:
    original = getattr(method, hook)

    def guarded(*args: Any) -> Any:
        states = [arg for arg in args if isinstance(arg, dict)]
        states += [dict(arg.start) for arg in args if isinstance(arg, Batch)]
        before = [cloned(arg) for arg in states]
        result = original(*args)
        for was, arg in zip(before, states, strict=True):
            same_bits(was, arg, f"{hook}() changes its argument")
        return result

    setattr(method, hook, guarded)


def order_of_clients(method: type[Method], params: Params) -> None:
    """clients visited in another order upload the same bits"""
    first, second = (_visits(method, params, order) for order in ((0, 1, 2, 3), (3, 1, 0, 2)))
    same_bits(first, second, "visited in the order 3, 1, 0, 2 instead of 0, 1, 2, 3")


def _visits(method: type[Method], params: Params, order: Sequence[int]) -> State:
    """Uploads and final state of two rounds of clients trained one after the other."""
    federation, state = after_rounds(method, params, 0, stack=1)
    uploads: State = {}

    def keep(args: tuple[Any, ...], _: Any) -> None:
        uploads.update({f"upload {name} of round {state.round + 1}": stack for name, stack in cloned(args[1]).items()})

    watch(federation.method, "aggregate", keep)
    for _ in range(2):
        federation.step(state, order)
    return {**uploads, **flat(state)}


def isolation(method: type[Method], params: Params) -> None:
    """clients that are not selected keep their state; no tensor shares memory with another"""
    federation, state = after_rounds(method, params, 0, eval_point="post_local")
    federation.step(state, (0, 1))
    absent = (0, 1, 3)  # two that took part before and one that never did
    personal = {client: cloned(federation.personal(state, client)) for client in absent}
    old, copy_of_old = flat(state), cloned(flat(state))
    federation.step(state, (2,))
    for client in absent:
        same_bits(personal[client], federation.personal(state, client), f"client {client}, absent from the round")
    same_bits(copy_of_old, old, "the state of an earlier round")
    tensors = {name: tensor for name, tensor in flat(state).items() if tensor.numel() and tensor.dtype != torch.bool}
    for number, tensor in enumerate(tensors.values()):
        tensor.fill_(number % 127)  # fits every type
    for number, (name, tensor) in enumerate(tensors.items()):
        require(bool((tensor == number % 127).all()), f"{name} shares memory with another tensor of the state")


def same_seed_same_bits(method: type[Method], params: Params) -> None:
    """two runs of a seed are identical; seed 0 is a seed"""
    runs = []
    for _ in range(2):
        federation, state = after_rounds(method, params, 2)
        runs.append((flat(state), evaluate(federation, state)))
    same_bits(runs[0][0], runs[1][0], "two runs with seed 0")
    require(runs[0][1] == runs[1][1], "two runs with seed 0 have different accuracies")


def no_global_random_numbers(method: type[Method], params: Params) -> None:
    """every draw comes from a generator that the harness hands over"""
    before = _global_streams()
    federation, state = after_rounds(method, params, 1)
    evaluate(federation, state)
    after = _global_streams()
    used = [name for name in before if before[name] != after[name]]
    require(not used, f"the global stream of {', '.join(used)} was used or re-seeded")


def _global_streams() -> dict[str, bytes]:
    return {
        "torch": torch.random.get_rng_state().numpy().tobytes(),
        "numpy": repr(np.random.get_state(legacy=False)).encode(),  # noqa: NPY002 - read, to see that nobody draws
        "random": repr(random.getstate()).encode(),
    }


def resume(method: type[Method], params: Params) -> None:
    """a run continued from its saved state by a new process equals one that was never interrupted"""
    federation = toy_federation(method, params, epochs=1)
    whole, parts = federation.start(), federation.start()
    for _ in range(3):
        federation.step(whole)
        continued = toy_federation(method, params, epochs=1)  # a new instance: what the old one kept on itself is lost
        parts = _reloaded(parts)
        continued.step(parts)
        same_bits(flat(whole), flat(parts), f"round {whole.round} continued from its checkpoint")
    require(evaluate(federation, whole) == evaluate(continued, parts), "the resumed run has other accuracies")


def _reloaded(state: FederationState) -> FederationState:
    file = io.BytesIO()
    torch.save(vars(state), file)
    file.seek(0)
    return FederationState(**torch.load(file, weights_only=True))


def evaluation_without_side_effects(method: type[Method], params: Params) -> None:
    """evaluating or not leaves training bit for bit the same; evaluating twice gives the same scores"""
    finetune = 0 if head_owner(method.paper_policy) == "local" else 1  # the second reading trains a copy
    _, quiet = after_rounds(method, params, 2)
    federation, state = after_rounds(method, params, 0, finetune_epochs=finetune)
    for _ in range(2):
        evaluate(federation, state)
        federation.step(state)
    same_bits(flat(quiet), flat(state), "evaluated before every round instead of never")
    scores: list[torch.Tensor] = []
    watch(federation.method, "predict", lambda _, result: scores.append(result))
    once = _evaluate(federation, state, scores)
    twice = _evaluate(federation, state, scores)
    same_bits(once[1], twice[1], "the scores of a second evaluation")
    require(once[0] == twice[0], "a second evaluation gives other accuracies")
    same_bits(flat(quiet), flat(state), "after an evaluation")


def _evaluate(federation: Federation, state: FederationState, scores: list[torch.Tensor]) -> tuple[list[Record], State]:
    scores.clear()
    records = evaluate(federation, state)
    return records, {f"batch {number}": score.clone() for number, score in enumerate(scores)}
