"""Schedules by hand."""

from typing import Any

import pytest

from fedprompt.harness.conformance.toy import toy_federation
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.federation.schedule import Evaluation, Group, Round, adaptation_epochs, schedule
from fedprompt.methods.fedvpt import FedVPT


def rounds(unseen: tuple[int, ...] = (), **protocol: Any) -> list[Round]:
    return list(schedule(Protocol(**{"head": "global", **protocol}), 0, [0, 1, 3], unseen, stack=2))


def epochs_by_client(evaluation: Evaluation) -> dict[int, int]:
    return {client: group.epochs for stack in evaluation.stacks for group in stack for client in group.clients}


def test_everybody_trains_in_stacks_and_the_last_rounds_are_evaluated() -> None:
    stacks = ((Group((0, 1), 0),), (Group((3,), 0),))
    assert rounds(rounds=3, last=1, eval_every=2) == [
        Round(1, (0, 1, 3), ((0, 1), (3,))),
        Round(2, (0, 1, 3), ((0, 1), (3,)), (Evaluation("global", "test", stacks),)),
        Round(3, (0, 1, 3), ((0, 1), (3,)), (Evaluation("global", "test", stacks),)),
    ]


def test_a_second_reading_fine_tunes_every_client() -> None:
    [scheduled] = rounds(rounds=1, epochs=2, finetune_epochs=3)
    plain, finetuned = scheduled.evaluations
    assert (plain.policy, epochs_by_client(plain)) == ("global", {0: 0, 1: 0, 3: 0})
    assert (finetuned.policy, epochs_by_client(finetuned)) == ("global_then_ft", {0: 3, 1: 3, 3: 3})


def test_only_reported_rounds_are_swept() -> None:
    evaluated = [scheduled.evaluations for scheduled in rounds(rounds=4, last=1, eval_every=2, sweep=True)]
    assert [[evaluation.sweep for evaluation in each] for each in evaluated] == [[], [False], [], [True]]


def test_never_sampled_clients_adapt_a_local_head_until_they_take_part() -> None:
    participants: set[int] = set()
    for scheduled in rounds(head="local", rounds=30, epochs=5, participation=0.3, last=30):
        participants.update(scheduled.cohort)
        [evaluation] = scheduled.evaluations
        assert epochs_by_client(evaluation) == {client: 0 if client in participants else 5 for client in (0, 1, 3)}
    assert participants == {0, 1, 3}


def test_unseen_clients_come_once_at_the_end() -> None:
    *earlier, last = rounds(unseen=(2, 4, 5), head="local", rounds=2, epochs=4, last=2, val_fraction=0.1)
    assert [len(scheduled.evaluations) for scheduled in earlier] == [1]
    stacks = ((Group((2, 4), 4),), (Group((5,), 4),))
    assert last.evaluations[1] == Evaluation("local", "val", stacks, unseen=True)


@pytest.mark.parametrize(
    ("policy", "options", "epochs"),
    [
        ("local", {}, (0, 2, 2)),
        ("local", {"never_sampled": "as_is"}, (0, 0, 2)),
        ("global", {"finetune_epochs": 3}, (0, 0, 0)),  # the server's head is used as it is
        ("global_then_ft", {"finetune_epochs": 3}, (3, 3, 3)),
    ],
)
def test_participants_never_sampled_clients_and_unseen_clients_adapt_by_the_policy(
    policy: str, options: dict[str, Any], epochs: tuple[int, int, int]
) -> None:
    protocol = Protocol(epochs=2, head="local" if policy == "local" else "global", **options)
    assert adaptation_epochs(protocol, policy) == epochs


def test_a_resumed_run_goes_on_with_the_same_rounds() -> None:
    federation = toy_federation(FedVPT, rounds=6, participation=0.25)
    assert list(federation.schedule(after=4)) == list(federation.schedule())[4:]
