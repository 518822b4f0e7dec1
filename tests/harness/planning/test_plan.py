"""What a suite costs, against counts by hand and against real runs."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedprompt.backbones import features as features_module
from fedprompt.backbones.backbone import FrozenViT
from fedprompt.backbones.weights import BackboneSpec
from fedprompt.core.errors import UserError
from fedprompt.core.rng import numpy_rng
from fedprompt.core.text import duration
from fedprompt.datasets import Dataset, make_partition, parse_partition
from fedprompt.harness.cli import main
from fedprompt.harness.federation.clients import ClientData
from fedprompt.harness.federation.counting import counted
from fedprompt.harness.planning import plan as plan_module
from fedprompt.harness.planning.calibration import Job, PassTime, Price, count_passes, prices
from fedprompt.harness.planning.cost import cost, meta_backbone, meta_method
from fedprompt.harness.planning.data import labelled, published
from fedprompt.harness.planning.plan import CellPlan, _busy, count_flops, makespan, plan_suite
from fedprompt.harness.planning.tally import tally_cells
from fedprompt.harness.running import run as run_module
from fedprompt.harness.running.cell import make_cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.run import run_cell
from fedprompt.harness.running.suite_file import load_suite, parse_suite
from fedprompt.methods import Batch

pytestmark = pytest.mark.slow  # the whole file, for what it adds up to

# -- three cells of the paper by hand: ViT-B/16 at 224 px, R = 100, E = 5 ---------------------------------------------

D, CLASSES = 768, {"domainnet": 10, "cifar100": 100}
PATCHES = 2 * 196 * D * (3 * 16 * 16)
EVALUATED = 19  # rounds 10, 20, ..., 90 and 91, 92, ..., 100; the last ten are reported


N = 197  # CLS and patches


def blocks(prompts: int = 0) -> int:
    """Forward through all twelve. Prompts are only keys and values: 4 d^2 each, where a token takes 8 d^2 and its MLP
    16 d^2; attention is two products of 2 N (N + prompts) d.

    The last one has one query, whose row takes 24 d^2, and 12 heads score and average all normed tokens: 2 * 12 d each.
    """
    whole = 24 * N * D**2 + 4 * prompts * D**2 + 4 * N * (N + prompts) * D
    return 11 * whole + 24 * D**2 + 48 * (N + prompts) * D


def way_back(prompts: int) -> int:
    """The same through frozen weights, which have no gradient; of attention five products instead of two, and four.

    Images have no gradient: block 0 has no way back to their queries, keys and values.
    """
    attention = 11 * 6 * N * (N + prompts) * D + 48 * (N + prompts) * D
    return blocks(prompts) + attention - 6 * N * D**2


@cache
def paper_cells() -> dict[str, CellPlan]:
    """Seed 0 of three cells, by method."""
    suite = load_suite("paper")
    chosen = []
    for method, dataset, label in (
        ("head-tune", "domainnet", "m=1"),
        ("fedvpt-d", "cifar100", "s=10"),
        ("pfedbayespt", "domainnet", "m=6"),
    ):
        setting = next(s for s in suite.settings if (s.dataset, s.label) == (dataset, label))
        chosen.append(replace(setting, rows=tuple(row for row in setting.rows if row.key == method)))
    one = replace(suite, seeds=(0,), settings=tuple(chosen))
    return {
        cell.cell.method: cell
        for cell in plan_suite(one, RunEnvironment(out=Path("nowhere")), flops=1.0).cells.values()
    }


@pytest.mark.slow
def test_head_tune_on_domainnet_with_one_domain_a_client() -> None:
    found = paper_cells()["head-tune"]
    train = 100 * 5 * (6 * 1830)
    evaluated = EVALUATED * (6 * 780)
    features = 6 * (1830 + 780)
    assert found.tally.images == {"train train": train, "evaluate": evaluated, "features": features}
    assert found.images == 5_490_000 + 88_920 + 15_660
    head = 2 * 10 * D  # logits; in training once more for the head's gradient
    assert found.flops == train * 2 * head + evaluated * head + features * (PATCHES + blocks())
    assert (found.cost.bytes_down, found.cost.bytes_up) == (4 * 7690, 4 * 7690)
    assert found.bytes_sent == 100 * 6 * 2 * 4 * 7690


def test_fedvpt_d_on_cifar_with_ten_classes_a_client() -> None:
    found = paper_cells()["fedvpt-d"]
    dealt = make_partition(parse_partition("classes:s=10,clients=100"), published("cifar100"), seed=0)
    sizes, tests = (np.array([len(rows) for rows in part]) for part in (dealt.train, dealt.test))
    train = adapted = evaluated = 0
    absent = set(range(100))
    for round_ in range(1, 101):
        cohort = numpy_rng(0, "participation", round_).choice(100, 5, replace=False)
        train += 5 * int(sizes[cohort].sum())
        absent -= set(cohort.tolist())
        if round_ % 10 == 0 or round_ > 90:  # who never took part fits a copy of the head before it is evaluated
            adapted += 5 * int(sizes[list(absent)].sum())
            evaluated += int(tests.sum())
    inputs = adapted // 5  # what the head reads stays the same in all five epochs
    assert found.tally.images == {"train train": train, "adapt": adapted, "inputs": inputs, "evaluate": evaluated}
    assert (train, adapted, evaluated) == (1_238_460, 387_305, 180_785)
    forward, head = PATCHES + blocks(10), 2 * 100 * D
    step = forward + head + way_back(10) + 2 * head  # of the head: its weights' gradient and its input's
    assert found.flops == train * step + adapted * 2 * head + inputs * forward + evaluated * (forward + head)
    assert found.bytes_sent == 100 * 5 * 2 * 4 * (12 * 10 * D)


def test_pfedbayespt_on_domainnet_with_all_domains_a_client() -> None:
    found = paper_cells()["pfedbayespt"]
    train, diagnosed = 100 * 5 * (6 * 1830), 100 * 6 * 4  # four images of every client in every round
    evaluated, swept = 9 * 6 * 780, 10 * 6 * 780
    seen = {"train train": train, "diagnose": diagnosed, "evaluate": evaluated, "sweep": swept}
    kept, dealt = 2**30 // (4 * 12 * 197 * D), 6 * (1830 + 780)  # a GB holds the frozen tokens of 147 images
    made = kept + round(sum(seen.values()) * (1 - kept / dealt))
    assert found.tally.images == {**seen, "features": made}
    frozen = PATCHES + 11 * (24 * 197 * D**2 + 4 * 197**2 * D)  # what enters each block, without prompts
    first, second = 12 * 2 * (2 * 64 * 197 * D), 12 * 2 * (2 * 64 * D)  # two MLPs a block, 197 tokens to 64 to 1
    prompted, head = blocks(10 + 1), 2 * 10 * D  # the patches' embedding is the first of the frozen tokens
    draw = first + second + prompted + head
    step = draw + first + second  # S = 1: a second psi
    back = way_back(11) + 2 * head + 2 * (2 * first + 2 * second)  # of weights, and of tokens for the LN before them
    assert found.flops == (
        train * (step + back)
        + diagnosed * (draw + first + second)
        + evaluated * 5 * draw
        + swept * 10 * draw
        + made * frozen
    )
    assert found.bytes_sent == 100 * 6 * 2 * 4 * (416_280 + 7_690)  # Algorithm 1 averages the head


# -- small runs, watched ----------------------------------------------------------------------------------------------

MICRO = BackboneSpec("micro-vit", "random", 16)
DEALT = "dirichlet:alpha=1,clients=4,min_size=2"
SHORT = {"rounds": 3, "epochs": 1, "batch_size": 8, "participation": 0.25, "last": 1, "eval_every": 2}
RECIPE = {"optimiser": "adamw", "schedule": "cosine", "warmup": 1, "clip": 1.0, "head_input": "normalised"}
RUNS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "one client per round, never-sampled clients adapt": ("fedvpt", {}, DEALT, SHORT),
    "never-sampled clients are taken as they are": ("fedvpt", {}, DEALT, {**SHORT, "never_sampled": "as_is"}),
    "every client fine-tunes": ("head-tune-ft", {}, DEALT, SHORT),
    "features of fine-tuning": ("fedvpt-d", {}, DEALT, {**SHORT, "head": "global", "finetune_epochs": 2}),
    "draws of fine-tuning": ("pfedbayespt", {"length": 1}, DEALT, {**SHORT, "finetune_epochs": 2}),
    "two stages and a query": ("sgpt", {"groups": 2}, DEALT, {**SHORT, "epochs": 3}),
    "stages of half the epochs": ("sgpt", {"groups": 2, "bcd_epochs": "E/2+E/2"}, DEALT, {**SHORT, "epochs": 3}),
    "all numbers of draws": ("pfedbayespt", {"length": 1}, DEALT, {**SHORT, "sweep": True, "participation": 0.5}),
    "statistics after a visit": ("pep-fedpt", {}, DEALT, {**SHORT, "stack": 1, "participation": 1.0}),
    "unseen clients": ("fedvpt-d", {}, f"{DEALT},unseen=half", SHORT),
    "unseen clients and a generator": ("pfedpg", {}, f"{DEALT},unseen=half", {**SHORT, "participation": 1.0}),
    "exchanges": ("pfedpg", {"unseen_mode": "server_loop"}, f"{DEALT},unseen=last_half", SHORT),
    "an unseen client that trains nothing": ("pep-fedpt", {}, f"{DEALT},unseen=half", SHORT),
    "held-out data": ("fedvpt", {}, DEALT, {**SHORT, "val_fraction": 0.3}),
    "another recipe": (
        "fedvpt",
        {},
        f"{DEALT},unseen=half",
        {**SHORT, **RECIPE, "head": "global", "finetune_epochs": 2},
    ),
}


class Watch:
    """Batches that a run asks for, by (split, stage), and frozen features that it computes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images: Counter[tuple[str, str]] = Counter()
        self.steps: Counter[tuple[str, str]] = Counter()
        self.features = 0
        batch, features, inputs = ClientData.batch, features_module.frozen_features, FrozenViT.layer_inputs

        def watched_batch(data: ClientData, *args: Any) -> Batch:
            made = batch(data, *args)
            self.images[args[1], made.stage] += sum(made.sizes)
            self.steps[args[1], made.stage] += 1
            return made

        def watched_features(backbone: FrozenViT, dataset: Dataset, depth: int | None, rows: Any) -> torch.Tensor:
            self.features += len(dataset.images) if rows is None else len(rows)
            return features(backbone, dataset, depth, rows)

        def watched_inputs(backbone: FrozenViT, images: torch.Tensor, depth: int | None = None) -> torch.Tensor:
            self.features += len(images)
            return inputs(backbone, images, depth)

        monkeypatch.setattr(ClientData, "batch", watched_batch)
        monkeypatch.setattr(FrozenViT, "layer_inputs", watched_inputs)
        monkeypatch.setattr(features_module, "frozen_features", watched_features)


def as_batches(counts: Mapping[str, int], split: str) -> Counter[tuple[str, str]]:
    """Kinds of passes as the batches in which they show."""
    shown = {"adapt": ("train", "adapt")}
    shown |= {"end": ("train", "evaluate"), "inputs": ("train", "evaluate")}
    shown |= {"evaluate": (split, "evaluate"), "sweep": (split, "evaluate"), "diagnose": ("train", "diagnose")}
    found: Counter[tuple[str, str]] = Counter()
    for kind, count in counts.items():
        if kind != "features":
            found[shown.get(kind) or ("train", kind.removeprefix("train ").removeprefix("unseen "))] += count
    return found


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.slow
def test_a_run_sees_what_was_planned(
    case: str, toy_source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, params, partition, protocol = RUNS[case]
    cell = make_cell(method, toy_source, partition, MICRO, 0, params, protocol)
    (planned,) = tally_cells([cell], {toy_source: run_module._dataset("toy", None, 16)})
    watch = Watch(monkeypatch)
    with counted() as flops:
        run_cell(cell, RunEnvironment(out=tmp_path))
    split = "val" if "val_fraction" in protocol else "test"
    images, steps = as_batches(planned.images, split), as_batches(planned.steps, split)
    if cell.protocol.finetune_epochs:  # fine-tuned heads ask for the same batches again, but pass no image
        images[split, "evaluate"] *= 2
        steps[split, "evaluate"] *= 2
    for watched in (watch.images, watch.steps):  # of the first batch, made for every method; most do nothing with it
        if ("train", "diagnose") not in images:
            del watched["train", "diagnose"]
    assert +watch.images == images
    assert +watch.steps == steps
    assert watch.features == planned.images.get("features", 0)
    # What is left out: the server's sums, padded rows of a head, steps smaller than a batch.
    shapes = meta_method(method, meta_backbone("micro-vit", 16), 4, head=cell.protocol.head, **params)
    priced = cost(shapes, 1, 8, planned.images)
    assert flops.flops == pytest.approx(CellPlan(cell, planned, priced).flops, rel=0.005)


# -- suites -----------------------------------------------------------------------------------------------------------

SETTING = {"table": "T", "dataset": "cifar100", "partition": "classes:s={s},clients=20,shots=2", "s": [5, 10]}
RAW = {
    "backbone": "micro-vit",
    "seeds": [0, 1],
    "methods": ["local-head", "fedvpt"],
    "protocol": {"rounds": 2, "epochs": 1, "batch_size": 8},
    "settings": [SETTING, {**SETTING, "table": "again", "s": [10], "methods": ["fedvpt", "head-tune"]}],
}


def test_a_cell_counts_where_it_is_shown_first(tmp_path: Path) -> None:
    plan = plan_suite(parse_suite("x", RAW), RunEnvironment(out=tmp_path), flops=1e9)
    lines = plan.frame().set_index(["table", "setting", "row"])
    assert len(plan.cells) == lines["cells"].sum() == 2 * (2 * 2 + 1)
    shared = lines.loc[("again", "s=10", "fedvpt"), ["cells", "elsewhere", "flops", "bytes_up"]]
    assert shared.tolist() == [0, 2, 0, 4 * 10 * 96]  # ten tokens of width 96
    assert lines.loc[("again", "s=10", "head-tune"), ["cells", "elsewhere"]].tolist() == [2, 0]
    assert lines["flops"].sum() == sum(cell.flops for cell in plan.cells.values())


def test_several_machines_of_given_speed_share_the_cells(tmp_path: Path) -> None:
    suite = parse_suite("x", RAW).only(["fedvpt"])
    plans = [plan_suite(suite, RunEnvironment(out=tmp_path), workers=workers, flops=1e9) for workers in (1, 100)]
    seconds = [cell.flops / 1e9 for cell in plans[0].cells.values()]
    assert [plan.seconds for plan in plans] == pytest.approx([sum(seconds), max(seconds)])


def test_finished_cells_take_no_time(tmp_path: Path) -> None:
    suite = parse_suite("x", RAW).only(["fedvpt"])
    done = suite.cells()[0]
    (tmp_path / "runs" / done.hash).mkdir(parents=True)
    (tmp_path / "runs" / done.hash / "done").touch()
    plan = plan_suite(suite, RunEnvironment(out=tmp_path), flops=1e9)
    left = sum(cell.flops for cell in plan.cells.values() if cell.cell != done)
    assert plan.seconds == pytest.approx(left / 1e9)
    assert plan.frame()["finished"].tolist() == [1, 0, 0]


def test_learning_rates_share_one_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Job] = []

    def spy(found: list[Job], *rest: Any) -> Any:
        jobs.extend(found)
        return prices(found, *rest)

    monkeypatch.setattr(plan_module, "prices", spy)
    lines = [{**SETTING, "params": {"fedvpt": {"lr": lr, "length": n}}} for lr, n in ((0.1, 1), (0.2, 1), (0.2, 2))]
    plan_suite(
        parse_suite("x", {**RAW, "methods": ["fedvpt"], "settings": lines}), RunEnvironment(out=tmp_path), flops=1e9
    )
    assert [job.params["length"] for job in jobs] == [1, 2]


@pytest.mark.parametrize(("weights", "computed"), [("random", [60_000, 0]), ("hub", [60_000, 60_000])])
def test_features_are_computed_once_unless_they_are_not_kept(weights: str, computed: list[int]) -> None:
    spec = BackboneSpec("micro-vit", weights, 32)
    cells = [make_cell(name, "cifar100", "classes:s=5", spec) for name in ("head-tune", "local-head")]
    assert [tally.images["features"] for tally in tally_cells(cells, {"cifar100": published("cifar100")})] == [
        *computed
    ]


def test_measured_time_is_that_of_passes_images_and_overhead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round: one visit of 20 clients stacked, ten images each, two steps; four evaluations of 100 test images."""
    suite = parse_suite("x", {**RAW, "methods": ["fedvpt"], "seeds": [0], "settings": [{**SETTING, "s": [5]}]})

    def fixed(jobs: list[Job], environment: RunEnvironment, workers: int, timed: bool) -> tuple[list[Price], float]:
        lines = {"train train": PassTime(1.0, 0.01), "evaluate": PassTime(0.0, 0.001)}
        return [Price(count_passes(job), lines) for job in jobs], 7.0

    monkeypatch.setattr(plan_module, "prices", fixed)
    plan = plan_suite(suite, RunEnvironment(out=tmp_path), workers=2)
    (cell,) = plan.cells.values()
    assert cell.tally.images["train train"] == 2 * 20 * 10
    evaluated = cell.tally.images["evaluate"]
    assert cell.seconds == pytest.approx(2 * 2 * 1.0 + 400 * 0.01 + evaluated * 0.001)
    assert plan.seconds == pytest.approx(cell.seconds + 7.0)


def test_workers_take_the_next_cell_when_they_are_free() -> None:
    assert makespan([3, 1, 1, 4], workers=2) == 6
    assert makespan([3, 1, 1, 4], workers=1) == 9
    assert makespan([], workers=2) == 0


# -- data that are not here -------------------------------------------------------------------------------------------


def test_published_sizes_are_planned_with_and_named() -> None:
    found = labelled("domainnet")
    assert "domainnet is not at hand: the paper's 1,830 train images per domain" in found.note
    assert np.bincount(found.dataset.domains[~found.dataset.is_test]).tolist() == [1830] * 6
    assert np.bincount(found.dataset.labels[found.dataset.is_test]).tolist() == [468] * 10


def test_labels_are_read_from_a_folder_without_decoding(tmp_path: Path) -> None:
    for domain in ("amazon", "caltech", "dslr", "webcam"):
        for label in range(10):
            (tmp_path / domain / f"class{label}").mkdir(parents=True)
            for image in range(5):
                (tmp_path / domain / f"class{label}" / f"{image}.jpg").touch()
    found = labelled("office-caltech10", tmp_path)
    assert found.note == ""
    assert (len(found.dataset.labels), int(found.dataset.is_test.sum())) == (200, 40)


def test_sizes_that_nobody_knows_are_asked_for() -> None:
    with pytest.raises(UserError, match="fedprompt prepare inaturalist"):
        labelled("inaturalist")


def test_a_busy_machine_is_told() -> None:
    assert _busy(0.3, cores=2) == ()
    [note] = _busy(5.3, cores=2)
    assert "busy before it was timed (load 5.3 on 2 cores)" in note


def test_flops_of_cells_are_those_of_the_plan(tmp_path: Path) -> None:
    suite = load_suite("smoke").only(["fedvpt", "sgpt"])
    planned = plan_suite(suite, RunEnvironment(tmp_path), flops=1e9)
    assert count_flops(suite.cells(), RunEnvironment(tmp_path)) == {
        key: cell.flops for key, cell in planned.cells.items()
    }


# -- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_tables_a_total_and_what_was_assumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "mine.toml"
    suite.write_text(
        """
        backbone = "micro-vit"
        methods = ["fedvpt"]
        seeds = [0]
        [protocol]
        rounds = 1
        epochs = 1
        [[settings]]
        table = "Label shift"
        dataset = "cifar100"
        partition = "classes:s={s}"
        s = [100]
        """
    )
    assert main(["plan", str(suite), "--flops", "1e9", "--workers", "1", "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Label shift")
    assert "1 cells, " in told
    assert "at 1 GFLOPS" in told
    assert "cifar100 is not at hand: 500 train and 100 test images per class." in told
    assert not (tmp_path / "out").exists()


def test_time_is_told_in_what_one_would_say() -> None:
    assert [duration(s) for s in (5, 90, 7200, 400_000, 1e8)] == ["5.0 s", "1.5 min", "2.0 h", "4.6 days", "3.2 years"]
