"""Speed, side by side: each group does the same work in several ways, timed in turn in one run."""

import dataclasses
import statistics
import time
from collections.abc import Callable

import torch

from fedprompt.datasets import Dataset, load_dataset
from fedprompt.harness.cells.cell import make_cell
from fedprompt.harness.cells.run import assemble
from fedprompt.harness.cells.site import Site
from fedprompt.harness.core.progress import track
from fedprompt.harness.federation.rounds import Federation
from fedprompt.harness.model.features import frozen_features
from fedprompt.harness.model.weights import BackboneSpec

Work = Callable[[], object]
BACKBONE = BackboneSpec("micro-vit", "random", 32)  # speed does not depend on what the weights are


def _federation(method: str, stack: int, batch_size: int = 32) -> Federation:
    protocol = {"rounds": 1, "epochs": 1, "batch_size": batch_size, "stack": stack}
    cell = make_cell(method, "glyph-domains", "domains:m=6,shots=6", BACKBONE, 0, {}, protocol)
    return assemble(cell, Site())[2]


def workloads() -> dict[str, dict[str, Work]]:
    """Group to its ways; the first way of a group is what the others are compared with."""
    torch.set_num_threads(1)
    alone, stacked = _federation("fedvpt-d", 1), _federation("fedvpt-d", 6)
    probe = _federation("head-tune", 6)
    vit = alone.method.backbone
    images = torch.randint(0, 256, (192, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    def whole_last_block() -> object:
        return vit.forward(images, rows=vit.tokens)

    def uncached_round() -> object:
        frozen_features(vit, _visited(probe))
        return probe.step(probe.start())

    return {
        "a round of FedVPT-D, six clients": {
            "one client at a time": lambda: alone.step(alone.start()),
            "six clients stacked": lambda: stacked.step(stacked.start()),
        },
        "a forward pass of 192 images": {
            "last block for all tokens": torch.no_grad()(whole_last_block),
            "last block for CLS only": torch.no_grad()(lambda: vit.cls(images)),
        },
        "a round of Head-Tune": {
            "features computed in the round": uncached_round,
            "features computed once": lambda: probe.step(probe.start()),
        },
    }


def _visited(federation: Federation) -> Dataset:
    """The images one round of ``federation`` visits, as a data set."""
    whole = load_dataset("glyph-domains", image_size=BACKBONE.image_size)
    visited = sum(federation.data.size(client) for client in federation.members)
    return dataclasses.replace(whole, images=whole.images[:visited])


def compare(repeats: int = 7) -> list[tuple[str, str, float, float]]:
    """(group, way, median seconds, speed-up over the group's first way); ways take turns, so that drift hits all."""
    rows = []
    for group, ways in workloads().items():
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in track(range(repeats + 1), group):
            for way, work in ways.items():
                begun = time.perf_counter()
                work()
                times[way].append(time.perf_counter() - begun)
        medians = {way: statistics.median(values[1:]) for way, values in times.items()}  # the first turn warms up
        base = next(iter(medians.values()))
        rows += [(group, way, seconds, base / seconds) for way, seconds in medians.items()]
    return rows
