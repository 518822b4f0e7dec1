"""Counts of earlier evaluations that must come out again, so that a client which did not change is not counted twice.

Counts serve rounds that are not reported: there only the number of correct predictions matters, not the last bits of
the scores, which depend on who is evaluated together and so on where a run was resumed.

A count is a function of what the client holds and of the random numbers of its round. It is kept only if it took
no random numbers and nothing was trained for it. It holds while the client keeps the same tensors of its own and

- the server's state has the same values as then (nothing is shared, or nothing came of the round), or
- the client is evaluated with what it last trained itself (`eval_point = post_local`).

States are remembered by reference, never copied.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from fedprompt.harness.federation.rounds import FederationState
from fedprompt.harness.federation.schedule import Evaluation, Group
from fedprompt.methods import State

if TYPE_CHECKING:
    from fedprompt.harness.measuring.evaluation import ClientScores

Reading = tuple[object, ...]


class Count(NamedTuple):
    personal: State | None  # what the client held of its own, None before its first visit
    local: State | None
    server: State
    scores: "Sequence[ClientScores]"


class Counts:
    """What one federation's evaluations have counted last, by reading and client."""

    def __init__(self) -> None:
        self._counts: dict[Reading, dict[int, Count]] = {}
        self._compared: tuple[State, State, bool] | None = None

    def split(self, state: FederationState, evaluation: Evaluation, group: Group) -> "tuple[list[ClientScores], Group]":
        """(scores that hold as they are, the clients of ``group`` that must be counted)."""
        counts = self._counts.get(_reading(evaluation))
        if not counts or not _repeats(evaluation, group):
            return [], group
        known: list[ClientScores] = []
        changed = []
        for client in group.clients:
            count = counts.get(client)
            if count and self._holds(count, state, client):
                known += count.scores
            else:
                changed.append(client)
        return known, Group(tuple(changed), group.epochs)

    def keep(
        self, state: FederationState, evaluation: Evaluation, group: Group, scores: "Iterable[ClientScores]"
    ) -> None:
        """Remember ``scores`` of ``group``, which took no random numbers."""
        if not _repeats(evaluation, group):
            return
        by_client: dict[int, list[ClientScores]] = {client: [] for client in group.clients}
        for of_client in scores:
            by_client[of_client.client].append(of_client)
        self._counts.setdefault(_reading(evaluation), {}).update(
            (client, Count(state.personal.get(client), state.local.get(client), state.server, own))
            for client, own in by_client.items()
        )

    def _holds(self, count: Count, state: FederationState, client: int) -> bool:
        if count.personal is not state.personal.get(client) or count.local is not state.local.get(client):
            return False
        return count.local is not None or self._same(count.server, state.server)

    def _same(self, before: State, now: State) -> bool:
        """Most clients were counted with the same server: the last answer is kept."""
        if before is now:
            return True
        if self._compared is None or self._compared[0] is not before or self._compared[1] is not now:
            self._compared = (before, now, same_values(before, now))
        return self._compared[2]


def same_values(before: State, now: State) -> bool:
    return before.keys() == now.keys() and all(torch.equal(before[name], now[name]) for name in now)


def _reading(evaluation: Evaluation) -> Reading:
    return evaluation.policy, evaluation.split, evaluation.sweep, evaluation.shared


def _repeats(evaluation: Evaluation, group: Group) -> bool:
    """Whether the same state gives the same counts: what is trained for an evaluation has a new order every round."""
    return not group.epochs and not evaluation.unseen
