"""What the suites that come with the package hold."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from fedprompt.backbones.backbone import FrozenViT
from fedprompt.datasets import load_dataset, make_partition, parse_partition
from fedprompt.harness.measuring.convergence import LEAST_EVALUATIONS
from fedprompt.harness.running.suite import KINDS
from fedprompt.harness.running.suite_file import load_suite, suite_names
from fedprompt.methods import registry


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_of_the_package_expands(name: str) -> None:
    suite = load_suite(name)
    planned, cells = list(suite.planned()), suite.cells()
    shown = sum(1 if row.policy else len(setting.policies) for setting in suite.settings for row in setting.rows)
    assert len(planned) == shown * len(suite.seeds)
    assert {entry.cell.hash for entry in planned} == {cell.hash for cell in cells}
    assert len({cell.hash for cell in cells}) == len(cells)


@pytest.mark.parametrize("name", [name for name in suite_names() if name.startswith("paper")])
def test_the_papers_recipe_is_constant_sgd_on_raw_features(name: str) -> None:
    rules = [cell.protocol for cell in load_suite(name).cells()]
    assert {(r.optimiser, r.schedule, r.warmup, r.clip, r.head_input) for r in rules} == {
        ("sgd", "constant", 0, 0, "raw")
    }


@pytest.mark.parametrize("name", ["embedded", "embedded-full", "paper", "cpu-cifar100", "cpu-office"])
def test_the_large_suites_hold_every_protocol(name: str) -> None:
    assert {setting.kind for setting in load_suite(name).settings} == set(KINDS) - {"novel", "target"}


def test_embedded_has_the_promised_settings() -> None:
    main = [s for s in load_suite("embedded").settings if s.kind == "heterogeneity"]
    assert [(s.dataset, s.label) for s in main] == [("glyph-domains", "m=1"), ("glyph-100", "s=20")]
    assert all(s.policies == ("local", "global", "global_then_ft") for s in main)


def test_the_embedded_suites_have_all_methods_between_them() -> None:
    """Those of `embedded` have published runs; what came later has its own suite, next to the same controls."""
    small, more = load_suite("embedded"), load_suite("embedded-more")
    published, later = ({row.key for row in suite.settings[0].rows} for suite in (small, more))
    assert published | later == set(registry().names(FrozenViT.offers))
    assert published & later == {"head-tune", "fedvpt", "fedsa-lora"}
    shared = {cell.hash for cell in small.cells()} & {cell.hash for cell in more.cells()}
    assert len(shared) == 2 * 2 * 2 * 3  # methods, columns, owners of the head, seeds: the same cells


def test_embedded_in_full_has_more_columns_rounds_and_seeds() -> None:
    small, full = load_suite("embedded"), load_suite("embedded-full")
    main = [s for s in full.settings if s.kind == "heterogeneity"]
    assert [s.label for s in main] == ["m=1", "m=6", "s=20", "s=5"]
    assert set(small.seeds) < set(full.seeds)
    assert min(cell.protocol.rounds for cell in full.cells()) >= 30
    assert all(s.policies == ("local", "global", "global_then_ft") for s in full.settings)


@pytest.mark.parametrize("name", ["embedded", "embedded-full"])
def test_every_class_of_an_embedded_partition_has_several_clients(name: str, shared_cache: Path) -> None:
    suite = load_suite(name)
    for dataset_name, partition in {(cell.dataset, cell.partition) for cell in suite.cells()}:
        dataset = load_dataset(dataset_name)
        held = make_partition(parse_partition(partition), dataset, suite.seeds[0]).train
        holders = np.bincount(np.concatenate([np.unique(dataset.labels[rows]) for rows in held]))
        assert holders.min() >= 3


@pytest.mark.parametrize(("name", "least"), [("embedded", 3), ("embedded-full", LEAST_EVALUATIONS)])
def test_the_end_of_an_embedded_run_is_evaluated_often_enough_to_tell_whether_it_settled(name: str, least: int) -> None:
    """With three, the least that show any noise, more runs are called moving than with four."""
    for cell in load_suite(name).cells():
        last = [r for r in range(1, cell.protocol.rounds + 1) if cell.protocol.evaluated(r)][-least:]
        assert len(last) == least
        assert last[0] > cell.protocol.rounds * 2 / 3


def test_the_papers_protocol() -> None:
    suite = load_suite("paper")
    labels = {kind: [s.label for s in suite.settings if s.kind == kind] for kind in KINDS}
    assert labels["heterogeneity"] == [*(f"m={m}" for m in range(1, 7)), *(f"s={s}" for s in (5, 10, 15, 20, 50))]
    assert labels["unseen"] == ["m=1", "m=2", "s=5", "s=10"]
    assert labels["ablation"] == labels["vsweep"] == ["m=6", "s=50"]
    assert (suite.seeds, suite.backbone.name) == ((0, 1, 2), "vit_base_patch16_224.orig_in21k")
    assert {(c.protocol.rounds, c.protocol.epochs, c.protocol.last) for c in suite.cells()} == {(100, 5, 10)}
    rates = {(s.dataset, s.kind): s.protocol.get("participation", 1) for s in suite.settings}
    assert {key: rate for key, rate in rates.items() if rate != 1} == {
        ("cifar100", "heterogeneity"): 0.05,
        ("cifar100", "unseen"): 0.1,
        ("cifar100", "ablation"): 0.05,
        ("cifar100", "vsweep"): 0.05,
    }


@pytest.mark.parametrize("name", ["embedded", "embedded-full", "paper", "cpu-cifar100", "cpu-office"])
def test_ablation_and_v_sweep_show_the_trainings_of_the_main_tables(name: str) -> None:
    planned = list(load_suite(name).planned())
    main = {entry.cell.hash for entry in planned if entry.setting.kind == "heterogeneity"}
    shown = {entry.cell.hash for entry in planned if entry.setting.kind == "vsweep"}
    plain = {e.cell.hash for e in planned if e.setting.kind == "ablation" and e.row.key == e.row.method}
    assert shown
    assert plain
    assert shown | plain <= main
    assert all(entry.cell.protocol.sweep for entry in planned if entry.setting.kind == "vsweep")


ABLATED = {
    "pfedbayespt-d": {"mask_keep_prob", "samples"},
    "pfedbayespt-g": {"mask_keep_prob", "samples", "mixture", "kl"},
    "pfedbayespt": set(),
    "full-without-mixture": {"mixture"},
    "d-with-masks": set(),
    "g-sampled": {"mask_keep_prob", "mixture", "kl", "test_prompt"},
    "head-tune": set(),
    "no-prompt-gentle": {"lr"},
}


@pytest.mark.parametrize("name", ["embedded", "embedded-full", "paper", "cpu-cifar100", "cpu-office"])
@pytest.mark.parametrize("tuning", [True, False])
def test_rows_of_an_ablation_differ_in_the_ablated_values_only(name: str, tuning: bool) -> None:
    suite = load_suite(name)
    if tuning:  # every method its own rates, on every partition and with every head
        tuned = {
            (cell.method, cell.dataset, cell.partition, cell.protocol.head): {
                "lr": 0.01 * place,
                "encoder_lr": 1e-4 * place,
            }
            for place, cell in enumerate(suite.cells(), start=1)
            if cell.method.startswith("pfedbayespt")
        }
        suite = dataclasses.replace(suite, tuned=tuned)
    ablations = [entry for entry in suite.planned() if entry.setting.kind == "ablation"]
    assert ablations
    for entry in ablations:
        reference = entry.setting.reference_row
        assert reference is not None
        full = suite.cell(entry.setting, reference, entry.cell.seed, entry.policy)
        shared = entry.cell.params.keys() & full.params.keys()
        assert {key for key in shared if entry.cell.params[key] != full.params[key]} == ABLATED[entry.row.key]
        rules = dataclasses.replace(entry.cell.protocol, sweep=full.protocol.sweep)  # it only counts further draws
        assert rules == full.protocol


def test_embedded_clip_shows_both_families_against_zero_shot() -> None:
    suite = load_suite("embedded-clip")
    assert {setting.control for setting in suite.settings} == {"zs-clip"}
    assert {setting.dataset for setting in suite.settings} == {"glyph-domains", "glyph-100"}
    assert (suite.backbone.name, len(suite.seeds)) == ("micro-clip", 3)
    texts = {"coop", "promptfl", "promptfl-ft", "prompt-fedper", "prompt-fedprox", "prompt-fedamp", "pfedprompt"}
    texts |= {"fedotp", "fedpgp", "pfedmoap", "pfeddc", "kgcoop", "prograd", "fedpurel"}
    assert texts | {"fedvpt-d", "head-tune"} <= {row.key for row in suite.rows}
