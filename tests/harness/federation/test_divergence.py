"""Numbers that are not finite end a run at once, wherever they appear first: nothing after them means anything."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.rounds import DivergedError
from fedprompt.harness.measuring.evaluation import evaluate
from fedprompt.methods import Batch, State
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.head_tune import HeadTune


def test_a_client_that_diverges_ends_the_round_and_is_named() -> None:
    federation = toy_federation(FedVPT, {"lr": 1e38})
    state = federation.start()
    with pytest.raises(DivergedError, match="diverged in round 1, client 0: loss or trained tensors are not finite"):
        federation.step(state, (0, 1))
    assert state.round == 0
    assert all(tensor.isfinite().all() for tensor in state.server.values())


def test_a_server_that_overflows_in_the_last_round_is_noticed() -> None:
    class Overflowing(HeadTune):
        """The sum of what clients sent, not their mean: a fault that leaves every upload finite."""

        def aggregate(self, server: State, uploads: State, weights: Tensor, clients: Sequence[int]) -> State:  # noqa: ARG002
            return {name: (tensor.abs() + 1).mul(3e38).sum(0) for name, tensor in uploads.items()}

    federation = toy_federation(Overflowing, rounds=1)
    state = federation.start()
    with pytest.raises(DivergedError, match=r"^diverged in round 1, server: aggregated tensors are not finite"):
        federation.step(state)
    assert state.round == 0


@pytest.mark.parametrize("options", [{"head": "global", "finetune_epochs": 1}, {"head": "local"}])
def test_a_head_that_diverges_while_it_adapts_is_noticed(options: dict[str, object]) -> None:
    federation = toy_federation(HeadTune, {"lr": 1e38}, **options)
    with pytest.raises(DivergedError, match=r"^diverged in round 0, client 2: loss or tensors adapted"):
        evaluate(federation, federation.start(), clients=[2, 3])


def test_predictions_that_are_no_numbers_are_noticed() -> None:
    class Undefined(HeadTune):
        def predict(self, theta: State, batch: Batch) -> Tensor:
            return super().predict(theta, batch) / torch.tensor([1.0, 0.0])[:, None, None] * 0

    federation = toy_federation(Undefined)
    with pytest.raises(DivergedError, match=r"^diverged in round 0, client 3: predictions are not finite"):
        evaluate(federation, federation.start(), clients=[1, 3])


def test_a_class_that_is_ruled_out_is_no_divergence() -> None:
    class Excluding(HeadTune):
        def predict(self, theta: State, batch: Batch) -> Tensor:
            scores = super().predict(theta, batch)
            return scores.index_fill(-1, torch.tensor([1]), float("-inf"))

    federation = toy_federation(Excluding)
    assert all(record.correct <= record.total for record in evaluate(federation, federation.start()))
