"""`run_cell`: a pure function from a cell (and the data) to a finished run folder."""

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedprompt.datasets import Dataset, Partition, load_dataset, make_partition, parse_partition
from fedprompt.harness.cells.cell import Cell
from fedprompt.harness.cells.folder import (
    Run,
    finish,
    is_done,
    load_checkpoint,
    open_folder,
    run_folder,
    save_checkpoint,
)
from fedprompt.harness.core.errors import UserError
from fedprompt.harness.core.fields import build
from fedprompt.harness.federation.clients import ClientData, Split
from fedprompt.harness.federation.evaluation import evaluate, evaluate_unseen
from fedprompt.harness.federation.metrics import per_round, records_frame, summarise
from fedprompt.harness.federation.rounds import Federation
from fedprompt.harness.model.backbone import FrozenViT
from fedprompt.harness.model.features import cached_features
from fedprompt.harness.model.weights import BackboneSpec, load_backbone
from fedprompt.methods import Task, registry


@dataclass(frozen=True)
class Site:
    """Where a cell runs. Nothing here changes its result on the CPU, but the number of threads may in the last bits."""

    out: Path = Path("results")
    data_root: Path | None = None
    weights: str | None = None  # the file behind a backbone's content hash, where it is not the embedded one
    device: str = "cpu"
    threads: int = 1
    plugins: tuple[str, ...] = ()


@dataclass(frozen=True)
class Progress:
    """What a running cell tells after each round; metrics only where the round was evaluated."""

    cell: str
    round: int
    rounds: int
    metrics: dict[str, float]


def choose_device(wanted: str) -> str:
    """`auto` takes a GPU where there is one."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=wanted)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device {wanted!r} is not available here; use cpu, cuda, cuda:N or auto.") from error
    return wanted


def run_cell(
    cell: Cell, site: Site, report: Callable[[Progress], None] = lambda _: None, restart: bool = False
) -> Path:
    """Run, resume or skip ``cell``; returns its folder, finished."""
    folder = run_folder(site.out, cell)
    if is_done(folder) and not restart:
        return folder
    torch.set_num_threads(site.threads)
    dataset, partition, federation = prepare(
        cell, site
    )  # whatever is wrong with the input shows before anything is written
    with open_folder(folder, cell, restart):
        if is_done(folder):  # another process finished it meanwhile
            return folder
        run = load_checkpoint(folder, cell, site.device) or Run(federation.start())
        partition.save(folder / "partition.npz")
        started, begun_at = time.perf_counter(), run.state.round
        split: Split = "val" if cell.protocol.val_fraction else "test"
        while run.state.round < cell.protocol.rounds:
            run.logs.append(federation.step(run.state))
            if cell.protocol.evaluated(run.state.round):
                run.records += evaluate(federation, run.state, split)
            if run.state.round == cell.protocol.rounds and partition.unseen:
                run.records += evaluate_unseen(federation, run.state, partition.unseen, split)
            save_checkpoint(folder, cell, run)
            report(Progress(cell.hash, run.state.round, cell.protocol.rounds, _latest(run)))
        seconds = time.perf_counter() - started
        summary = {
            **summarise(
                records_frame(run.records), cell.protocol.rounds, cell.protocol.last, cell.protocol.never_sampled
            ),
            "floats_down": run.logs[-1].floats_down / len(run.logs[-1].cohort),
            "floats_up": run.logs[-1].floats_up / len(run.logs[-1].cohort),
            "seconds_per_round": seconds / max(1, cell.protocol.rounds - begun_at),
            "partition_hash": partition.hash,
            "data_checksum": dataset.checksum,
            "environment": environment(site),
        }
        finish(folder, cell, run, summary, partition.hash)
    return folder


def prepare(cell: Cell, site: Site) -> tuple[Dataset, Partition, Federation]:
    """Everything a federation of ``cell`` is made of."""
    dataset = _dataset(cell.dataset, site.data_root, cell.backbone.image_size)
    partition = make_partition(parse_partition(cell.partition), dataset, cell.seed, cell.protocol.val_fraction)
    backbone = _backbone(cell.backbone, site.weights, site.device)
    cls = registry().get(cell.method)
    params: Any = build(cls.Params, cell.params, f"parameters of {cell.method}")
    wanted = "features" in cls.needs
    rows = np.unique(np.concatenate([*partition.train, *partition.test, *partition.val]))
    features = cached_features(backbone, dataset, cls.feature_depth(params), rows) if wanted else None
    data = ClientData(dataset, partition, cls.needs, features, site.device)
    task = Task(dataset.class_names, data.counts(dataset.num_classes))
    method = cls(params, backbone, task)
    members = [client for client in range(partition.num_clients) if client not in partition.unseen]
    return dataset, partition, Federation(method, data, cell.protocol, cell.seed, members)


def environment(site: Site) -> dict[str, str]:
    device = torch.cuda.get_device_name(site.device) if site.device.startswith("cuda") else platform.machine()
    return {
        "torch": torch.__version__,
        "device": device,
        "threads": str(site.threads),
        "python": platform.python_version(),
    }


def _latest(run: Run) -> dict[str, float]:
    log = asdict(run.logs[-1])
    metrics = {k: float(log[k]) for k in ("loss", "floats_down", "floats_up", "bytes_down", "bytes_up")}
    metrics |= {f"diagnostics/{name}": value for name, value in run.logs[-1].diagnostics.items()}
    records = [record for record in run.records if record.round == run.state.round]
    if records:
        row = per_round(records_frame(records)).iloc[0]
        metrics |= {"average": float(row["average"]), "worst_local": float(row["worst_local"])}
    return metrics


# A worker runs many cells of few data sets and backbones.
@lru_cache(maxsize=4)
def _dataset(name: str, root: Path | None, image_size: int) -> Dataset:
    return load_dataset(name, root=root, image_size=image_size)


@lru_cache(maxsize=2)
def _backbone(spec: BackboneSpec, weights: str | None, device: str) -> FrozenViT:
    return load_backbone(spec, weights, device)
