"""Readings of one training that differ in heads alone share what their predictions compute."""

import pytest
import torch
from torch import Tensor

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.schedule import evaluations_now, unseen_evaluations
from fedprompt.harness.measuring.evaluation import Common, evaluate_due, records_of
from fedprompt.methods import Batch, Method, State, registry


@pytest.mark.parametrize("name", registry().names())
@pytest.mark.parametrize("unseen", [False, True], ids=["members", "unseen"])
def test_readings_counted_together_equal_readings_counted_apart(name: str, unseen: bool) -> None:
    head = "none" if registry().get(name).paper_policy == "none" else "global"
    federation = toy_federation(registry().get(name), head=head, finetune_epochs=2, sweep=True, last=5, stack=3)
    state = federation.start()
    federation.step(state)
    rules, clients = federation.protocol, federation.members
    if unseen:
        readings = unseen_evaluations(rules, [2, 3], federation.stack)
    else:
        readings = evaluations_now(rules, state.round, clients, state.personal, federation.stack)
    assert [reading.policy for reading in readings] == [head, f"{head}_then_ft"]
    apart = [record for reading in readings for record in records_of(evaluate_due(federation, state, [reading]))]
    assert records_of(evaluate_due(federation, state, readings)) == apart


@pytest.mark.parametrize("name", ["fedvpt-d", "pfedbayespt"])
def test_a_fine_tuned_head_reads_what_another_reading_has_computed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    federation = toy_federation(registry().get(name), head="global", finetune_epochs=1)
    state = federation.start()
    readings = evaluations_now(federation.protocol, 0, federation.members, (), federation.stack)
    stages: list[str] = []
    look = type(federation.method).features if name == "fedvpt-d" else type(federation.method).drawn_features

    def watched(method: Method, theta: State, batch: Batch, *args: int) -> Tensor:
        stages.append(batch.stage)
        return look(method, theta, batch, *args)

    monkeypatch.setattr(type(federation.method), look.__name__, watched)
    evaluate_due(federation, state, readings[:1])
    once = stages.count("evaluate")
    stages.clear()
    evaluate_due(federation, state, readings)
    assert stages.count("evaluate") == once > 0


def test_readings_that_differ_in_more_than_heads_have_nothing_in_common() -> None:
    common, theta = Common(), {"prompt": torch.zeros(2, 3), "head.bias": torch.zeros(2, 4)}
    common.known((0, 1), "test", theta)[0]["seen"] = torch.ones(1)
    assert common.known((0, 1), "test", {**theta, "head.bias": torch.ones(2, 4)})[0]
    assert not common.known((0, 1), "val", theta)[0]
    assert not common.known((0, 1), "test", {**theta, "prompt": torch.ones(2, 3)})[0]
