"""The toy with a pFedBayesPT variant on it, for the two test files of the family."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.rounds import Federation
from fedprompt.methods import Batch, State
from fedprompt.methods._instance_prompts import Pass
from fedprompt.methods.pfedbayespt import PFedBayesPT, PFedBayesPTD, PFedBayesPTG

D, G, FULL = PFedBayesPTD, PFedBayesPTG, PFedBayesPT
ALL = pytest.mark.parametrize("method", [D, G, FULL])
MC = {"mixture": 0, "kl": "sampled"}


def build(method: type[PFedBayesPT], **params: Any) -> tuple[Federation, PFedBayesPT, State]:
    """The toy, the method and what clients 0 and 2 hold before round 1."""
    federation = toy_federation(method, params)
    assert isinstance(federation.method, PFedBayesPT)
    return federation, federation.method, federation.theta(federation.start(), [0, 2])[1]


def batch_of(
    federation: Federation, clients: tuple[int, ...] = (0, 2), stage: str = "train", seeds: tuple[int, ...] = (5, 6)
) -> Batch:
    rngs = [torch.Generator().manual_seed(seed) for seed in seeds]
    return federation.data.batch(clients, "train", [torch.arange(6)] * len(clients), rngs, stage)


def pass_of(
    method: PFedBayesPT, theta: State, batch: Batch, mask: Tensor | None = None, noise: Tensor | None = None
) -> Pass:
    """One prompted pass; without mask and noise, that of the mean prompt."""
    return method.forward(method.view(theta, batch), [mask], noise)


def loss_of(method: type[PFedBayesPT], stage: str = "train", **params: Any) -> Tensor:
    federation, built, theta = build(method, **params)
    return built.loss(theta, batch_of(federation, stage=stage))


def probabilities(method: type[PFedBayesPT], **params: Any) -> Tensor:
    federation, built, theta = build(method, **params)
    return built.predict(theta, batch_of(federation, stage="evaluate")).exp()
