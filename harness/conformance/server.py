"""Properties of the server half: what travels, and what the server makes of it."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from fedprompt.harness.conformance.lab import (
    ALL,
    Params,
    after_rounds,
    cloned,
    close,
    flat,
    require,
    same_bits,
    same_layout,
    trained_names,
    watch,
)
from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.payload import traffic
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.methods import Method, State

# A float32 mean of equal numbers, or a mix of two equal numbers, rounds once or twice: 6e-8 each.
SINGLE = 1e-6


def names_and_shapes(method: type[Method], params: Params) -> None:
    """rates name tensors that exist; states keep their names, shapes and types; stacks have one entry per client"""
    federation, state = after_rounds(method, params, 0)
    server, personal = cloned(state.server), cloned(federation.personal(state, 0))
    received, theta = federation.theta(state, ALL)
    _, unseen = federation.theta(state, ALL, unseen=True)  # adapts too, and may hold more
    visits = [(stage, theta) for stage in (*hooks.stages(federation.method, 1), hooks.adaptation(federation.method, 1))]
    for stage, held in (*visits, *((stage, unseen) for stage in hooks.unseen_stages(federation.method, 1))):
        missing = sorted(stage.rates.keys() - held.keys())
        have = ", ".join(sorted(held))
        require(not missing, f"stage {stage.name!r} trains {', '.join(missing)}, but a client holds {have}")
    closing = hooks.end_visit(federation.method, theta, federation.data.ordered(ALL, "train", 8))
    sent = federation.method.upload({**theta, **closing}, received)
    for what, payload in (("download", received), ("upload", sent)):
        for name, tensor in payload.items():
            require(tensor.dim() > 0 and len(tensor) == len(ALL), f"{what} {name} has no leading axis of clients")
    for _ in range(2):
        federation.step(state)
    same_layout(server, state.server, "the server's state after two rounds")
    same_layout(personal, state.personal[0], "the personal state after two rounds")
    tracked = sorted(name for name, tensor in flat(state).items() if tensor.requires_grad)
    require(not tracked, f"{', '.join(tracked)} still carries autograd's history; detach it")


def payload(method: type[Method], params: Params) -> None:
    """what travels is what shapes alone say, and all that does is counted; nothing personal is uploaded"""
    federation, state = after_rounds(method, params, 0)
    visits: list[tuple[State, State, State]] = []
    watch(federation.method, "upload", lambda args, sent: visits.append((*args, sent)))
    derived = traffic(federation.method)
    for _ in range(3):
        log = federation.step(state)
        down = derived.first_down if log.round == 1 else derived.down
        for what, expected, *measured in (
            ("downloads", down, log.floats_down, log.bytes_down),
            ("uploads", derived.up, log.floats_up, log.bytes_up),
        ):
            floats, size = (number / len(ALL) for number in measured)
            require(
                (floats, size) == expected,
                f"round {log.round}: a client {what} {floats:g} floats in {size:g} bytes, but its shapes say "
                f"{expected.floats} in {expected.bytes}: what is sent depends on values or on the round",
            )
    passes = len(visits) // 3  # of a round: clients of some methods train one by one
    for (_, last, before), (_, received, _) in zip(visits, visits[passes:], strict=False):
        for position in range(len(ALL) // passes):
            counted = hooks.sent_tensors(federation.method, received, position)
            known = [*(stack[position] for stack in (*last.values(), *before.values())), *counted.values()]
            for name in received.keys() - counted.keys():
                tensor = received[name][position]
                held = not tensor.is_floating_point() or any(torch.equal(tensor, other) for other in known)
                require(held, f"download {name} is not counted, yet the client has no copy of it")
    personal_names = set(federation.personal(state, 0)) | set(federation.method.init_personal(torch.Generator(), 0))
    for theta, received, sent in visits:
        leaked = sorted(personal_names & (sent.keys() | received.keys()))
        require(not leaked, f"personal {', '.join(leaked)} is in the payload")
        for name, tensor in sent.items():
            twins = [twin for twin in personal_names if twin in theta and _holds(tensor, theta[twin])]
            require(not twins, f"upload {name} is personal {', '.join(twins)} under another name")


def _holds(sent: Tensor, personal: Tensor) -> bool:
    """Whether the numbers of a personal tensor travel; constants (a bias of zeros) prove nothing."""
    same = sent.numel() == personal.numel() and torch.equal(sent.flatten(), personal.flatten().to(sent.dtype))
    return same and personal.numel() > len(personal) and bool((personal != personal.flatten()[0]).any())


def server_uses_only_uploads(method: type[Method], params: Params) -> None:
    """the server's next state is a function of its state and of the uploads; a new server computes the same"""
    federation, state = after_rounds(method, params, 0, stack=1)
    calls = _aggregations(federation)
    for _ in range(2):
        federation.step(state)
    for round_, (before, uploads, weights, clients, result) in enumerate(calls, 1):
        fresh = toy_federation(method, params)
        same_bits(result, fresh.aggregate(before, uploads, weights, clients)[0], f"round {round_} aggregated afresh")


def identical_uploads(method: type[Method], params: Params) -> None:
    """averaging identical uploads changes nothing, whatever their number and weights"""
    federation, state = after_rounds(method, params, 0)
    calls = _aggregations(federation)
    for _ in range(2):
        federation.step(state)
    before, uploads, _, _, _ = calls[-1]
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)

    def aggregate(copies: int) -> State:
        same = {name: stack[:1].expand(copies, *stack.shape[1:]).clone() for name, stack in uploads.items()}
        share = weights[:copies] / weights[:copies].sum()
        return federation.aggregate(before, same, share, [0] * copies)[0]

    once, thrice = aggregate(1), aggregate(3)
    # Counters and other statistics that do not train may add up; everything else is a mean.
    trained = trained_names(federation.method)
    counted = uploads.keys() - trained
    means = [{k: v for k, v in result.items() if k not in counted} for result in (once, thrice)]
    close(means[0], means[1], "three equal uploads", SINGLE)
    for name in uploads.keys() & before.server.keys() & trained:
        old, new = before.server[name], uploads[name][0]
        slack = SINGLE * max(1.0, float(new.abs().max()) if new.numel() else 1.0)
        outside = (once[name] < torch.minimum(old, new) - slack) | (once[name] > torch.maximum(old, new) + slack)
        count = int(outside.sum())
        require(
            count == 0, f"{count} of {new.numel()} entries of {name} leave the range of the server's and the uploads'"
        )


def zero_epochs(method: type[Method], params: Params) -> None:
    """a round without local epochs changes nothing that trains"""
    federation, state = after_rounds(method, params, 1)
    before, personal = _trainable(federation, state), cloned(flat(FederationState(0, {}, state.personal)))
    federation.protocol = dataclasses.replace(federation.protocol, epochs=0)
    federation.step(state)
    same_bits(personal, flat(FederationState(0, {}, state.personal)), "after a round of zero epochs")
    close(before, _trainable(federation, state), "after a round of zero epochs", SINGLE)


def _trainable(federation: Federation, state: FederationState) -> State:
    names = trained_names(federation.method)
    return {name: tensor for name, tensor in federation.theta(state, ALL)[1].items() if name in names}


def _aggregations(
    federation: Federation,
) -> list[tuple[FederationState, State, Tensor, Sequence[int], State]]:
    """Copies of the arguments of every aggregation from now on, and of the server's next state."""
    calls: list[tuple[FederationState, State, Tensor, Sequence[int], State]] = []
    aggregate = federation.aggregate

    def recorded(
        state: FederationState, uploads: State, weights: Tensor, clients: Sequence[int]
    ) -> tuple[State, State]:
        before = FederationState(state.round, cloned(state.server), optimiser=cloned(state.optimiser))
        arguments = (before, cloned(uploads), weights.clone(), list(clients))
        server, optimiser = aggregate(state, uploads, weights, clients)
        calls.append((*arguments, cloned(server)))
        return server, optimiser

    federation.aggregate = recorded  # type: ignore[method-assign]
    return calls
