"""A method on the toy before round 1."""

from typing import Any, TypeVar

import torch

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.rounds import Federation
from fedprompt.methods import Batch, Method, State

ALL = (0, 1, 2, 3)
M = TypeVar("M", bound=Method)


def toy_start(method: type[M], **params: Any) -> tuple[Federation, M, State, Batch]:
    """The toy, the method, what all clients hold, and their first images."""
    federation = toy_federation(method, params)
    assert isinstance(federation.method, method)
    _, theta = federation.theta(federation.start(), ALL)
    batch = federation.data.batch(ALL, "train", [torch.arange(size) for size in (8, 5, 8, 3)], [])
    return federation, federation.method, theta, batch
