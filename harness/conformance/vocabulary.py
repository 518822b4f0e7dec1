"""A property of methods that can score classes which nobody trained on."""

from dataclasses import replace

import torch
from torch import Tensor

from fedprompt.harness.conformance.lab import ALL, Params, after_rounds, close, double_precision, first_rows, require
from fedprompt.harness.conformance.toy import CLASS_NAMES
from fedprompt.harness.federation import hooks
from fedprompt.harness.federation.rounds import Federation, FederationState
from fedprompt.methods import Method, State

DOUBLE = 1e-9  # in float64, as for the other comparisons


def class_list(method: type[Method], params: Params) -> None:
    """with open_vocabulary, the same state scores any list of classes: their order moves scores, nothing else does"""
    if not hooks.is_open_vocabulary(method):
        return
    with double_precision():
        federation, state = after_rounds(method, params, 1)
        own, fewer = federation.method, _asked(federation.method, CLASS_NAMES[:2])
        require(_shapes(own) == _shapes(fewer), "shapes of the state depend on the number of classes")
        count = _scores(federation, state, fewer).shape[-1]
        require(count == 2, f"asked about 2 classes, it gives {count} scores")
        backwards = _scores(federation, state, _asked(own, CLASS_NAMES[::-1]))
        # Not `own` itself: what a client remembers of classes it trained on may count there.
        expected = {"scores": _scores(federation, state, _asked(own, CLASS_NAMES))}
        close(expected, {"scores": backwards.flip(-1)}, "asked about the classes in reverse order", DOUBLE)


def _asked(method: Method, names: tuple[str, ...]) -> Method:
    """The method again, about these classes, none of which anybody trained on."""
    counts = torch.zeros_like(method.task.train_counts[:, : len(names)])
    return type(method)(method.params, method.backbone, replace(method.task, class_names=names, train_counts=counts))


@torch.no_grad()
def _scores(federation: Federation, state: FederationState, method: Method) -> Tensor:
    _, theta = federation.theta(state, ALL)
    batch = first_rows(federation, ALL, [4] * len(ALL), "evaluate", theta)
    constants = hooks.begin_evaluation(method, theta, federation.data.ordered(ALL, "train", 8))
    return method.predict(theta, replace(batch, start=constants))


def _shapes(method: Method) -> dict[str, torch.Size]:
    """Of all first values."""
    fresh: State = {**method.init_server(torch.Generator()), **method.init_personal(torch.Generator(), 0)}
    return {name: tensor.shape for name, tensor in fresh.items()}
