"""Schedules by hand."""

from typing import Any

import pytest

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.schedule import (
    AdaptationEpochs,
    Evaluation,
    Group,
    Round,
    adaptation_epochs,
    schedule,
)
from fedprompt.methods import Method
from fedprompt.methods.fedvpt import FedVPT
from fedprompt.methods.head_tune import HeadTune
from fedprompt.methods.head_tune_ft import HeadTuneFT

NOBODY_ADAPTS = AdaptationEpochs(0, 0)


def rounds(
    protocol: Protocol, unseen: tuple[int, ...] = (), adaptation: AdaptationEpochs = NOBODY_ADAPTS
) -> list[Round]:
    return list(schedule(protocol, 0, [0, 1, 3], unseen, stack=2, adaptation=adaptation))


def test_everybody_trains_in_stacks_and_the_last_rounds_are_evaluated() -> None:
    stacks = ((Group((0, 1), 0),), (Group((3,), 0),))
    assert rounds(Protocol(rounds=3, last=1, eval_every=2)) == [
        Round(1, (0, 1, 3), ((0, 1), (3,))),
        Round(2, (0, 1, 3), ((0, 1), (3,)), (Evaluation("test", stacks),)),
        Round(3, (0, 1, 3), ((0, 1), (3,)), (Evaluation("test", stacks),)),
    ]


def test_only_reported_rounds_are_swept() -> None:
    evaluated = [r.evaluations for r in rounds(Protocol(rounds=4, last=1, eval_every=2, sweep=True))]
    assert [[evaluation.sweep for evaluation in each] for each in evaluated] == [[], [False], [], [True]]


def test_strangers_adapt_until_they_take_part() -> None:
    protocol = Protocol(rounds=30, participation=0.3, last=30)
    participants: set[int] = set()
    for scheduled in rounds(protocol, adaptation=AdaptationEpochs(1, 5)):
        participants.update(scheduled.cohort)
        (evaluation,) = scheduled.evaluations
        epochs = {client: group.epochs for stack in evaluation.stacks for group in stack for client in group.clients}
        assert epochs == {client: 1 if client in participants else 5 for client in (0, 1, 3)}
    assert participants == {0, 1, 3}


def test_unseen_clients_come_once_at_the_end() -> None:
    *earlier, last = rounds(Protocol(rounds=2, epochs=4, last=2, val_fraction=0.1), unseen=(2, 4, 5))
    assert [len(scheduled.evaluations) for scheduled in earlier] == [1]
    assert last.evaluations[1] == Evaluation("val", ((Group((2, 4), 4),), (Group((5,), 4),)), newcomers=True)


@pytest.mark.parametrize(
    ("method", "options", "epochs"),
    [
        (FedVPT, {}, (0, 2)),
        (FedVPT, {"never_sampled": "as_is"}, (0, 0)),
        (FedVPT, {"eval_ft_epochs": 3}, (3, 2)),
        (HeadTune, {}, (0, 0)),  # nothing is personal
        (HeadTuneFT, {}, (2, 2)),
    ],
)
def test_who_adapts_before_an_evaluation(
    method: type[Method], options: dict[str, Any], epochs: tuple[int, int]
) -> None:
    federation = toy_federation(method, epochs=2, **options)
    assert adaptation_epochs(federation.method, federation.protocol) == epochs


def test_a_resumed_run_goes_on_with_the_same_rounds() -> None:
    federation = toy_federation(FedVPT, rounds=6, participation=0.25)
    assert list(federation.schedule(after=4)) == list(federation.schedule())[4:]
