"""How long a session still takes: cells weighed by counted FLOPs, corrected by what was measured so far."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cached_property
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedprompt.harness.running.cell import Cell
    from fedprompt.harness.running.run import RoundProgress


ENOUGH = 0.01  # of a session's FLOPs, to speak of the rest


class Remaining:
    """Work that is left, at the pace at which work was done since the beginning, however many cells run side by side.

    A method's seconds per FLOP are measured between its rounds; until there are any, all methods are taken for equally
    fast.
    """

    def __init__(
        self,
        cells: "Mapping[str, Cell]",
        count: Callable[[], Mapping[str, float]],
        now: Callable[[], float] = monotonic,
    ) -> None:
        """``cells`` that are not finished and what counts their FLOPs, both by hash; asked in the first round."""
        self._cells, self._count, self._now, self._begun = cells, count, now, now()
        self._last: dict[str, tuple[float, int]] = {}  # when each running cell reported, and which round
        self._left = dict.fromkeys(cells, 1.0)  # of each cell, from 1 to 0
        self._done: dict[str, float] = defaultdict(float)  # of each cell, in this session
        self._seconds: dict[str, float] = defaultdict(float)  # of each method, between rounds,
        self._counted: dict[str, float] = defaultdict(float)  # and its FLOPs in them

    @cached_property
    def _flops(self) -> dict[str, float]:
        counted = self._count()
        return {key: max(1.0, float(counted.get(key, 1.0))) for key in self._cells}

    def round(self, progress: "RoundProgress") -> None:
        flops = self._flops  # before the clock is read: counting takes time, too
        key, now, method = progress.cell, self._now(), self._cells[progress.cell].method
        then, number = self._last.get(key, (now, progress.round - 1))  # a resumed cell begins with a later round
        share = (progress.round - number) / progress.rounds
        if key in self._last:
            self._seconds[method] += now - then
            self._counted[method] += flops[key] * share
        self._done[key] += share
        self._left[key] = 1 - progress.round / progress.rounds
        self._last[key] = now, progress.round

    def end(self, key: str) -> None:
        """The cell is finished or has failed."""
        self._left[key] = 0.0

    @property
    def seconds(self) -> float | None:
        """None until a hundredth of the FLOPs are done: cheap cells, which come first, tell nothing of the others."""
        if not self._done:
            return None
        if sum(share * self._flops[key] for key, share in self._done.items()) < ENOUGH * sum(self._flops.values()):
            return None
        counted = sum(self._counted.values())
        overall = sum(self._seconds.values()) / counted if counted else 1.0

        def work(share: Mapping[str, float]) -> float:
            return sum(part * self._flops[key] * self._pace(key, overall) for key, part in share.items())

        done = work(self._done)
        return (self._now() - self._begun) * work(self._left) / done if done else None

    def _pace(self, key: str, overall: float) -> float:
        """Seconds per FLOP of the cell's method."""
        method = self._cells[key].method
        return self._seconds[method] / self._counted[method] if self._counted.get(method) else overall
