import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedprompt.core.errors import UserError
from fedprompt.harness.conformance.toy import toy_backbone, toy_federation
from fedprompt.harness.federation import hooks
from fedprompt.methods import Task, weighted_mean
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.head_tune import HeadTune


def test_weighted_mean() -> None:
    stack = torch.tensor([[1.0, 0.0], [5.0, 8.0]])
    assert weighted_mean(stack, torch.tensor([0.75, 0.25])).tolist() == [2, 2]


@given(st.lists(st.integers(1, 2000), min_size=1, max_size=20), st.integers(0, 100))
def test_identical_uploads_aggregate_to_themselves(sizes: list[int], seed: int) -> None:
    upload = torch.randn(50, generator=torch.Generator().manual_seed(seed))
    weights = torch.tensor(sizes, dtype=torch.float64)
    mean = weighted_mean(upload.expand(len(sizes), -1), weights / weights.sum())
    assert torch.equal(mean, upload)
    assert mean.dtype == torch.float32


def test_a_backbone_without_what_the_method_needs_is_refused() -> None:
    class Reader(HeadTune):
        name = "reader"
        needs = frozenset({"features", "text"})

    with pytest.raises(UserError, match=r"method 'reader' needs text, which backbone 'toy' does not offer"):
        Reader(None, toy_backbone(), Task(("a",), torch.ones(1, 1)))


def test_a_download_is_the_servers_state_for_each_client() -> None:
    method = toy_federation(HeadTune).method
    sent = hooks.download(method, {"a": torch.tensor([1.0, 2.0])}, [4, 7, 9])
    assert sent["a"].tolist() == [[1, 2]] * 3


def test_only_what_was_received_is_sent_back() -> None:
    method = toy_federation(FedVPT).method
    theta = {"prompt": torch.ones(1, 2), "head.weight": torch.ones(1, 3)}
    assert list(method.upload(theta, {"prompt": torch.zeros(1, 2)})) == ["prompt"]


def test_aggregation_keeps_what_was_not_uploaded() -> None:
    method = toy_federation(HeadTune).method
    server = {"a": torch.zeros(1), "count": torch.tensor([5.0])}
    new = method.aggregate(server, {"a": torch.tensor([[2.0], [4.0]])}, torch.tensor([0.5, 0.5]), [0, 1])
    assert {name: value.item() for name, value in new.items()} == {"a": 3, "count": 5}


def test_adaptation_trains_the_head_alone() -> None:
    stage = hooks.adaptation(toy_federation(FedVPT, {"lr": 0.2}).method, 7)
    assert (stage.rates, stage.epochs) == ({"head.weight": 0.2, "head.bias": 0.2}, 7)
