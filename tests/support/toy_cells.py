"""A data set that `run_cell` can find by name and that trains in milliseconds."""

import dataclasses

import numpy as np
import pytest

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.core.rng import numpy_rng
from fedprompt.datasets import Dataset
from fedprompt.harness.conformance.toy import toy_dataset
from fedprompt.harness.running import cell as cell_module
from fedprompt.harness.running import run as run_module
from fedprompt.harness.running.cell import Cell, make_cell

MICRO = BackboneSpec("micro-vit", "random", 16)


@pytest.fixture
def toy_source(monkeypatch: pytest.MonkeyPatch) -> str:
    """The toy pictures with two domains, under the name `toy`."""
    base = toy_dataset()
    domains = numpy_rng(0, "data", "toy domains").permutation(np.arange(len(base.labels)) % 2)
    dataset = dataclasses.replace(base, domains=domains, domain_names=("left", "right"))

    def load(*_: object) -> Dataset:
        return dataset

    monkeypatch.setattr(run_module, "_dataset", load)
    monkeypatch.setattr(cell_module, "dataset_names", lambda: ["toy"])
    return "toy"


@pytest.fixture
def toy_cell(toy_source: str) -> Cell:
    protocol = {"rounds": 4, "epochs": 1, "batch_size": 8, "participation": 0.5, "last": 2, "eval_every": 2}
    return make_cell("fedvpt", toy_source, "dirichlet:alpha=1,clients=4,min_size=2", MICRO, 0, {"length": 2}, protocol)
