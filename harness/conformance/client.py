"""Properties of the client half: losses, gradients, and what surrounds a client in a stack."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedprompt.harness.conformance.lab import (
    ALL,
    Params,
    after_rounds,
    check_logits,
    cloned,
    close,
    double_precision,
    first_rows,
    flat,
    require,
    same_bits,
    trained_names,
    watch,
)
from fedprompt.harness.conformance.toy import toy_backbone_for, toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.payload import traffic
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.harness.federation.training import train
from fedprompt.harness.measuring.evaluation import adapt, evaluate
from fedprompt.methods import HeadedMethod, Method, State

# In float64 an operation rounds by 1e-16 and right methods agree to about that; any leak worth the name is far above.
DOUBLE = 1e-9


def trainable_tensors_move(method: type[Method], params: Params) -> None:
    """every tensor with a learning rate gets a gradient and moves"""
    # Without weight decay only a gradient moves a tensor. Two rounds, because some parts wake up at the second visit.
    federation, state = after_rounds(method, params, 0, weight_decay=0.0)
    still = trained_names(federation.method)
    sent = traffic(federation.method)
    sends = bool(sent.down.floats or sent.up.floats)
    require(bool(still) or not sends, "stages() trains nothing, but something is sent")
    for _ in range(2):
        _, theta = federation.theta(state, ALL)
        stages = hooks.stages(federation.method, 2)
        after, _ = train(federation.method, theta, stages, federation.data, ALL, federation.protocol, (0, 1))
        still = {name for name in still if theta[name].numel() and torch.equal(theta[name], after[name])}
        federation.step(state)
    require(
        not still, f"{', '.join(sorted(still))} has a learning rate but never moves: the loss does not depend on it"
    )


def gradient_matches_the_loss(method: type[Method], params: Params) -> None:
    """autograd's gradient is the derivative of the loss: no term was detached by accident"""
    # Central differences in float64: rounding gives 1e-16 / step = 1e-10. Truncation grows with the square of the step
    # relative to the tensor, and contexts begin at 0.02.
    step, relative, absolute = 1e-6, 1e-4, 1e-7
    with double_precision():
        federation, state = after_rounds(method, params, 1)
        _, start = federation.theta(state, ALL)
        stages = hooks.stages(federation.method, 1)
        # In the middle of a visit: where it begins, a penalty on the distance to the download is zero in any case.
        theta, _ = train(federation.method, start, stages, federation.data, ALL, federation.protocol, (0, 2))

        def loss_of(changed: State, stage: str) -> Tensor:
            batch = first_rows(federation, ALL, [8] * len(ALL), stage, start)
            return federation.method.loss({**theta, **changed}, batch)

        rng = torch.Generator().manual_seed(0)
        for stage in stages:
            for name in stage.rates:
                if name in hooks.stop_gradients(federation.method):
                    continue
                along = torch.randn(theta[name].shape, generator=rng)
                leaf = theta[name].clone().requires_grad_()
                at = [loss_of({name: theta[name] + h * along}, stage.name) for h in (step, -step)]
                slope = (at[0] - at[1]) / (2 * step)
                loss = loss_of({name: leaf}, stage.name)
                (grad,) = torch.autograd.grad(loss.sum(), [leaf], allow_unused=True)
                gradient_slope = torch.zeros_like(slope) if grad is None else (grad * along).flatten(1).sum(1)
                error = (gradient_slope - slope).abs()
                allowed = relative * slope.abs() + absolute * (1 + loss.detach().abs())
                worst = int((error - allowed).argmax())
                require(
                    bool((error <= allowed).all()),
                    f"{name} in stage {stage.name!r}: along a random direction the loss changes at rate "
                    f"{float(slope[worst]):.4g}, the gradient says {float(gradient_slope[worst]):.4g}",
                )


def loss_falls(method: type[Method], params: Params) -> None:
    """training lowers the loss of the toy"""
    federation, state = after_rounds(method, params, 0, epochs=2)
    if not trained_names(federation.method):
        return  # a fixed predictor, such as a zero-shot control
    # Eight rounds, because an objective may change until each of a method's parts has had its turn (groups of SGPT).
    losses = [federation.step(state).loss for _ in range(8)]
    # The baselines lose 13 % here; 1 % tells learning from standing still.
    require(
        losses[-1] < losses[0] - 0.01 * abs(losses[0]),
        f"the mean training loss went from {losses[0]:.4f} in round 1 to {losses[-1]:.4f} in round 8",
    )


def stacking(method: type[Method], params: Params) -> None:
    """clients trained one by one, by threes and all at once agree"""
    with double_precision():
        _, alone = after_rounds(method, params, 2, stack=1)
        for stack in (3, 4):
            _, stacked = after_rounds(method, params, 2, stack=stack)
            close(flat(alone), flat(stacked), f"stack={stack} against stack=1", DOUBLE)


def padding_and_neighbours(method: type[Method], params: Params) -> None:
    """a client's loss, gradient and prediction depend on nobody else in the batch"""
    with double_precision():
        federation, state = after_rounds(method, params, 1)
        alone = _seen(federation, state, (3,), (5,))
        close(alone, _seen(federation, state, (3, 0), (5, 8)), "padded next to a larger client", DOUBLE)
        close(alone, _seen(federation, state, (1, 3), (0, 5)), "next to a client that has no samples left", DOUBLE)
        # Equal shapes run through equal kernels, so another neighbour may not change a single bit.
        one, other = (_seen(federation, state, (3, client), (5, 8)) for client in (0, 2))
        same_bits(one, other, "with another neighbour of the same size")


def _seen(federation: Federation, state: FederationState, clients: Sequence[int], sizes: Sequence[int]) -> State:
    """Loss, gradients and logits of client 3, whoever trains with it."""
    method, me = federation.method, clients.index(3)
    _, theta = federation.theta(state, clients)
    seen: State = {}
    for stage in hooks.stages(method, 1):
        leaves = {name: theta[name].clone().requires_grad_() for name in stage.rates}
        loss = method.loss({**theta, **leaves}, first_rows(federation, clients, sizes, stage.name, theta))
        require(tuple(loss.shape) == (len(clients),), f"the loss is {tuple(loss.shape)}, not one per client")
        grads = torch.autograd.grad(loss.sum(), list(leaves.values()), allow_unused=True) if leaves else ()
        seen[f"loss in stage {stage.name!r}"] = loss[me].detach()
        for name, grad in zip(leaves, grads, strict=True):
            if grad is not None:
                seen[f"gradient of {name} in stage {stage.name!r}"] = grad[me]
    with torch.no_grad():
        # Half of them: the smallest client has four test images, and equal sizes must stay equal.
        batch = first_rows(federation, clients, [size // 2 for size in sizes], "evaluate", theta)
        seen["logits"] = method.predict(theta, batch)[me][batch.mask[me]]
    return seen


def unseen_and_never_sampled(method: type[Method], params: Params) -> None:
    """a client that never took part predicts and adapts a copy; only what its stages name moves"""
    federation, state = after_rounds(method, params, 0, weight_decay=0.0)
    federation.step(state, ALL[:-1])
    before, new = cloned(flat(state)), ALL[-1:]
    closing: set[str] = set()  # what the end of a stage sets, which a method says openly
    watch(federation.method, "end_stage", lambda _, result: closing.update(result))
    for unseen in (False, True):  # not selected so far, and kept out of all rounds: these may hold more
        _, theta = federation.theta(state, new, unseen)
        check_logits(federation, theta, new, "unseen or never-sampled client")
        adapted = adapt(federation, state, new, 2, unseen)
        moved = {name for name in theta if not torch.equal(theta[name], adapted[name])}
        first = hooks.unseen_stages(federation.method, 2) if unseen else ()
        stages = [*first, hooks.adaptation(federation.method, 2)]
        named = {name for stage in stages for name in stage.rates} & theta.keys()
        odd = sorted(moved - named - closing)
        require(not odd, f"{', '.join(odd)} moves, which no stage of adaptation names")
        require(named <= moved, f"{', '.join(sorted(named - moved))} is named by a stage but stays as it was")
        check_logits(federation, adapted, new, "unseen or never-sampled client after adaptation")
    evaluate(federation, state, clients=new)
    same_bits(before, flat(state), "after an unseen or never-sampled client adapted")


def head_input(method: type[Method], params: Params) -> None:
    """where the protocol normalises what a linear head reads, its scores do not depend on the features' length"""
    if not issubclass(method, HeadedMethod):
        return
    scores: dict[str, list[Tensor]] = {"raw": [], "normalised": []}
    for what, seen in scores.items():
        for gain in (1.0, 4.0):
            backbone = toy_backbone_for(method)
            for parameter in backbone.vit.norm.parameters():
                parameter.data *= gain
            federation = toy_federation(method, params, backbone=backbone, head_input=what)
            state = federation.start()
            federation.step(state)  # a head may begin at zero
            _, theta = federation.theta(state, ALL)
            with torch.no_grad():
                batch = first_rows(federation, ALL, [4] * len(ALL), "evaluate", theta)
                seen.append(federation.method.predict(theta, batch)[batch.mask])
    # Layer norm adds 1e-5 to a variance of about 1.
    close({"scores": scores["normalised"][0]}, {"scores": scores["normalised"][1]}, "features four times as long", 1e-3)
    require(not torch.equal(*scores["raw"]), "with head_input = raw, the scores do not depend on the features' length")
