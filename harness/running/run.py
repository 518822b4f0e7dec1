"""`run_cell`: a pure function from a cell (and the data) to a finished run folder."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.clip import FrozenCLIP
from fedprompt.backbones.features import cached_features
from fedprompt.backbones.layer_inputs import LayerInputs, PatchFeatures
from fedprompt.backbones.weights import BackboneSpec, is_clip, load_backbone
from fedprompt.backbones.zero_shot import require_zero_shot, zero_shot_accuracy
from fedprompt.core.errors import UserError
from fedprompt.core.memory import keep_freed_memory
from fedprompt.datasets import Dataset, Partition, load_dataset, make_partition, parse_partition, resize_rows
from fedprompt.harness.federation.assembly import make_federation
from fedprompt.harness.federation.rounds import Federation, RoundLog
from fedprompt.harness.measuring.counts import Counts
from fedprompt.harness.measuring.evaluation import Record, evaluate_due, pack_scores, records_of
from fedprompt.harness.measuring.metrics import per_round, records_frame, summarise, trained_reading
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.code import code_digest
from fedprompt.harness.running.environment import DEFAULT_ENVIRONMENT, RunEnvironment
from fedprompt.harness.running.folder import finish, is_done, open_folder, run_folder
from fedprompt.harness.running.journal import Journal
from fedprompt.methods import registry

GUARDED = 256  # about how many training images the zero-shot guard looks at


@dataclass(frozen=True)
class RoundProgress:
    """What a running cell reports after each round; accuracies only where the round was evaluated."""

    cell: str  # its hash
    round: int
    rounds: int
    metrics: dict[str, float]


def run_cell(
    cell: Cell,
    environment: RunEnvironment = DEFAULT_ENVIRONMENT,
    report: Callable[[RoundProgress], None] = lambda _: None,
    restart: bool = False,
) -> Path:
    """Run, resume or skip ``cell``; returns its folder, finished. ``report`` is called after each round."""
    folder = run_folder(environment.out, cell)
    if is_done(folder) and not restart:
        return folder
    code = code_digest(registry().get(cell.method), is_clip(cell.backbone.name))
    if code != cell.code:  # files were edited after the command began
        raise UserError(f"{cell.label} is of code {cell.code}, but this process has {code}; run the command again.")
    torch.set_num_threads(environment.threads)
    keep_freed_memory()
    dataset, partition, federation = assemble(cell, environment)  # bad input fails here, before anything is written
    rules = cell.protocol
    with open_folder(folder, cell, restart):
        if is_done(folder):  # another process has finished it in the meantime
            return folder
        journal = Journal(folder, cell, partition.hash, dataset.checksum, environment.device)
        state, log = journal.state or federation.start(), journal.log
        partition.save(folder / "partition.npz")
        seconds, first_round = 0.0, state.round
        counts = None if environment.evaluate_all else Counts()
        for scheduled in federation.schedule(partition.unseen, after=state.round):
            begun = time.perf_counter()
            log = federation.step(state, scheduled.cohort)
            # The last bits of scores depend on who is evaluated together: what is kept is scored in whole stacks.
            is_kept = rules.reported(scheduled.number)
            scores = evaluate_due(federation, state, scheduled.evaluations, None if is_kept else counts)
            records = records_of(scores)
            journal.append(state, log, records, pack_scores(scores) if is_kept else b"")
            seconds += time.perf_counter() - begun  # without the report, whose listeners may count all cells' FLOPs
            report(RoundProgress(cell.hash, state.round, rules.rounds, _metrics(log, records)))
        assert log is not None  # a protocol has at least one round
        summary = {
            **summarise(journal.records.read(), rules.rounds, rules.last, rules.never_sampled),
            "floats_down": log.floats_down / len(log.cohort),
            "floats_up": log.floats_up / len(log.cohort),
            "seconds_per_round": seconds / max(1, rules.rounds - first_round),
            "partition_hash": partition.hash,
            "data_checksum": dataset.checksum,
            "environment": versions(environment),
        }
        finish(folder, summary)
    return folder


def assemble(cell: Cell, environment: RunEnvironment) -> tuple[Dataset, Partition, Federation]:
    """The data set, its partition and the federation of ``cell``, ready to start."""
    dataset = _dataset(cell.dataset, environment.data_root, cell.backbone.image_size)
    partition = make_partition(parse_partition(cell.partition), dataset, cell.seed, cell.protocol.val_fraction)
    resize_rows(dataset, partition.all_rows)
    backbone = shared_backbone(cell.backbone, environment.weights, environment.device)
    cls = registry().get(cell.method)
    if "text" in cls.needs:
        _check_zero_shot(cell.dataset, environment.data_root, cell.backbone, environment.weights, environment.device)
    federation = make_federation(
        cls,
        cell.params,
        backbone,
        dataset,
        partition,
        cell.protocol,
        cell.seed,
        features=lambda depth: cached_features(backbone, dataset, depth, partition.all_rows),
        layer_inputs=lambda depth: _layer_inputs(cell.dataset, cell.backbone, depth, environment),
        patches=lambda: _patches(cell.dataset, cell.backbone, environment),
        device=environment.device,
        image_memory=environment.image_memory,
    )
    return dataset, partition, federation


def data_checksum(cell: Cell, environment: RunEnvironment) -> str:
    """Of the data that ``cell`` would have now; empty if they are not at hand."""
    try:
        return _dataset(cell.dataset, environment.data_root, cell.backbone.image_size).checksum
    except UserError:
        return ""


def versions(environment: RunEnvironment) -> dict[str, str]:
    device = (
        torch.cuda.get_device_name(environment.device) if environment.device.startswith("cuda") else platform.machine()
    )
    return {
        "torch": torch.__version__,
        "device": device,
        "threads": str(environment.threads),
        "python": platform.python_version(),
    }


def _metrics(log: RoundLog, records: list[Record]) -> dict[str, float]:
    metrics = {k: float(getattr(log, k)) for k in ("loss", "floats_down", "floats_up", "bytes_down", "bytes_up")}
    metrics |= {f"diagnostics/{name}": value for name, value in log.diagnostics.items()}
    if records:
        row = per_round(trained_reading(records_frame(records))).iloc[0]
        metrics |= {"average": float(row["average"]), "worst_local": float(row["worst_local"])}
    return metrics


# A worker runs many cells, but of few data sets and backbones.
@lru_cache(maxsize=4)
def _dataset(name: str, root: Path | None, image_size: int) -> Dataset:
    return load_dataset(name, root=root, image_size=image_size)


@lru_cache(maxsize=2)
def shared_backbone(spec: BackboneSpec, weights: str | None, device: str) -> FrozenViT:
    """The one that all cells of this process compute with."""
    return load_backbone(spec, weights, device)


@lru_cache(maxsize=1)
def _layer_inputs(dataset: str, spec: BackboneSpec, depth: int | None, environment: RunEnvironment) -> LayerInputs:
    """Kept from cell to cell: all rounds, seeds and partitions of a data set see the same images."""
    images = _dataset(dataset, environment.data_root, spec.image_size).images
    return LayerInputs(
        shared_backbone(spec, environment.weights, environment.device), images, depth, environment.token_memory
    )


@lru_cache(maxsize=1)
def _patches(dataset: str, spec: BackboneSpec, environment: RunEnvironment) -> PatchFeatures:
    """Kept from cell to cell, like layer inputs."""
    images = _dataset(dataset, environment.data_root, spec.image_size).images
    return PatchFeatures(
        shared_backbone(spec, environment.weights, environment.device), images, environment.token_memory
    )


@lru_cache(maxsize=8)
def _check_zero_shot(name: str, root: Path | None, spec: BackboneSpec, weights: str | None, device: str) -> None:
    """Stop before anything trains if pretrained towers cannot read the data set's own training images."""
    backbone, dataset = shared_backbone(spec, weights, device), _dataset(name, root, spec.image_size)
    if not isinstance(backbone, FrozenCLIP) or spec.weights == "random":
        return
    rows = np.flatnonzero(~dataset.is_test)
    sample = rows[:: max(1, len(rows) // GUARDED)]
    require_zero_shot(backbone, zero_shot_accuracy(backbone, dataset, sample), dataset.num_classes)
