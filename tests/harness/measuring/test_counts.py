"""Counting only clients that changed gives the records of counting all, to the digit."""

from typing import Any

import pytest

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.rounds import Federation
from fedprompt.harness.measuring import evaluation as evaluation_module
from fedprompt.harness.measuring.counts import Counts
from fedprompt.harness.measuring.evaluation import Record, evaluate_due, records_of
from fedprompt.methods import registry

AS_IS: dict[str, Any] = {"participation": 0.25, "rounds": 4, "never_sampled": "as_is", "stack": 2}


def run(federation: Federation, counts: Counts | None) -> list[Record]:
    state = federation.start()
    records = []
    for scheduled in federation.schedule():
        federation.step(state, scheduled.cohort)
        for evaluation in scheduled.evaluations:
            records += records_of(evaluate_due(federation, state, [evaluation], counts))
    return records


@pytest.fixture
def counted_clients(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many clients were counted, call by call."""
    calls: list[int] = []
    count = evaluation_module.score_clients

    def spy(federation: Any, state: Any, theta: Any, clients: Any, *rest: Any) -> Any:
        calls.append(len(clients))
        return count(federation, state, theta, clients, *rest)

    monkeypatch.setattr(evaluation_module, "score_clients", spy)
    return calls


@pytest.mark.parametrize("eval_point", ["post_agg", "post_local"])
@pytest.mark.parametrize("method", registry().names())
def test_records_are_those_of_a_full_evaluation(method: str, eval_point: str) -> None:
    federation = toy_federation(registry().get(method), eval_point=eval_point, **AS_IS)
    assert run(federation, Counts()) == run(federation, None)


@pytest.mark.parametrize("never_sampled", ["as_is", "finetune"])
def test_records_of_local_heads_are_those_of_a_full_evaluation(never_sampled: str) -> None:
    rules = {**AS_IS, "never_sampled": never_sampled}
    federation = toy_federation(registry().get("head-tune"), head="local", **rules)
    assert run(federation, Counts()) == run(federation, None)


def test_nothing_shared_counts_the_cohort_alone(counted_clients: list[int]) -> None:
    federation = toy_federation(registry().get("head-tune"), head="local", **AS_IS)
    run(federation, Counts())
    assert sum(counted_clients) == 4 + 3  # all at first, then one of four in each of three rounds
    counted_clients.clear()
    run(federation, None)
    assert sum(counted_clients) == 16


def test_a_shared_part_that_moves_counts_everybody(counted_clients: list[int]) -> None:
    run(toy_federation(registry().get("head-tune"), head="global", **AS_IS), Counts())
    assert sum(counted_clients) == 16


def test_what_clients_trained_themselves_stays(counted_clients: list[int]) -> None:
    federation = toy_federation(registry().get("fedvpt"), head="global", eval_point="post_local", **AS_IS)
    run(federation, Counts())
    trained, expected = set[int](), 0
    for scheduled in federation.schedule():
        trained.update(scheduled.cohort)
        expected += 4 - len(trained.difference(scheduled.cohort))  # the others hold the server's new state
    assert sum(counted_clients) == expected < 16


def test_random_predictions_are_drawn_anew(counted_clients: list[int]) -> None:
    run(toy_federation(registry().get("pfedbayespt"), head="local", eval_point="post_local", **AS_IS), Counts())
    assert sum(counted_clients) == 16
