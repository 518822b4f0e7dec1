import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from PIL import Image
from support.report_suites import (
    a_setting,
    a_suite,
    every_kind,
    make_numbers,
    recorded,
    records_frame,
    results_frame,
    run_all,
    trials,
)
from support.run_folders import BACKBONE

from fedprompt.backbones.weights import load_backbone
from fedprompt.core.errors import UserError
from fedprompt.datasets import load_dataset, make_partition, parse_partition
from fedprompt.harness.planning.cost import cost, meta_method
from fedprompt.harness.report.collect import collect
from fedprompt.harness.report.figures import cost as figures_cost
from fedprompt.harness.report.figures import write
from fedprompt.harness.report.figures.clients import figures_partition, figures_spread
from fedprompt.harness.report.figures.cost import bytes_sent, compute, image_flops, whole_tables
from fedprompt.harness.report.figures.curves import figures_rounds, figures_vsweep, published_points, sweep
from fedprompt.harness.report.figures.style import DrawnFigure
from fedprompt.harness.report.figures.tuning import figures_tuning
from fedprompt.harness.report.figures.write import write_figures
from fedprompt.harness.report.numbers import Number
from fedprompt.harness.report.papers import load_papers
from fedprompt.harness.running.suite import Suite

pytestmark = pytest.mark.slow  # the whole file, for what it adds up to

TWO = (0, 1)


def records_of(suite: Suite, level: float = 0.5, partition: str = "none") -> pd.DataFrame:
    """Two clients of every entry, two rounds; a seed adds 0.1, a round 0.2, client 1 another 0.1."""
    lines = [
        {
            **{"table": s.table, "kind": s.kind, "column": suite.settings.index(s), "setting": s.label},
            **{"row": row.key, "title": row.title, "seed": cell.seed, "round": round_, "client": client},
            **{"accuracy": level + 0.1 * cell.seed + 0.2 * (round_ - 1) + 0.1 * client},
            **{"participated": True, "unseen": False, "samples": 0, "partition": partition},
            **{"policy": policy, "reading": s.reading(row, policy)},
        }
        for s, row, policy, cell in suite.planned()
        for round_ in (1, 2)
        for client in (0, 1)
    ]
    return pd.DataFrame(lines)


def rounds_of(suite: Suite, loss: float = 1.0, bytes_up: int = 800) -> pd.DataFrame:
    records = records_of(suite)
    keys = ["table", "kind", "column", "setting", "row", "title", "policy", "seed", "round"]
    return records[keys].drop_duplicates().assign(cohort="0 1", loss=loss, bytes_up=bytes_up)


def summary_of(suite: Suite, results: pd.DataFrame, out: Path = Path("nowhere")) -> list[Number]:
    """With printed values: by default those that the package brings."""
    return make_numbers(suite, results, papers=load_papers(out))


def no_gains(suite: Suite) -> list[Number]:
    return summary_of(suite, results_frame(suite))


def drawn(figures: Iterator[DrawnFigure], name: str) -> list[Axes]:
    return next(each.figure.axes for each in figures if each.name == name)


def band_edges(ax: Axes) -> list[tuple[float, float]]:
    """Lowest and highest y of each band."""
    bands = [part for part in ax.collections if isinstance(part, PolyCollection)]
    heights = [band.get_paths()[0].vertices[:, 1] for band in bands]
    return [(float(y.min()), float(y.max())) for y in heights]


def no_data(name: str) -> Any:
    raise UserError(f"{name} is not at hand.")


# -- over rounds ----------------------------------------------------------------------------------------------------


def test_curves_are_means_over_seeds_with_a_band_of_one_deviation() -> None:
    suite = a_suite(("fedvpt",), TWO)
    [ax] = drawn(figures_rounds(suite, records_of(suite), no_gains(suite)), "accuracy-rounds")
    [line] = ax.lines
    # Seed 0 has (50, 60) and (70, 80) percent, seed 1 ten points more: 55 and 65, then 75 and 85.
    assert line.get_xdata().tolist() == [1, 2]
    assert line.get_ydata().tolist() == pytest.approx([60.0, 80.0])
    spread = 10 / 2**0.5
    assert band_edges(ax) == [pytest.approx((60 - spread, 80 + spread))]


def test_of_many_rows_the_control_and_the_best_stand_out() -> None:
    keys = ("head-tune", "fedvpt", "fedvpt-d", "pfedpg", "fedpr-s", "sgpt", "pep-fedpt")
    suite = a_suite(keys, TWO)
    levels = {(0, key, seed): [[0.3 + 0.05 * place] * 2] * 2 for place, key in enumerate(keys) for seed in TWO}
    summary = [dataclasses.replace(number, control=number.row == "head-tune") for number in no_gains(suite)]
    records = records_frame(levels).assign(kind="heterogeneity")
    [ax] = drawn(figures_rounds(suite, records, summary), "accuracy-rounds")
    named = [line.get_label() for line in ax.lines if not str(line.get_label()).startswith("_")]
    assert named == ["No prompt", "FedPR-S", "SGPT", "PEP-FedPT (reconstruction)"]
    assert len(ax.lines) == len(keys)
    assert len(band_edges(ax)) == len(named)


def test_one_seed_has_no_band() -> None:
    suite = a_suite(("fedvpt",))
    [ax] = drawn(figures_rounds(suite, records_of(suite), no_gains(suite)), "accuracy-rounds")
    assert band_edges(ax) == []


def test_curves_leave_out_unseen_clients_and_other_draws() -> None:
    suite = a_suite(("fedvpt",))
    records = records_of(suite)
    others = [records.assign(unseen=True, accuracy=0.0), records.assign(samples=3, accuracy=0.0)]
    [ax] = drawn(figures_rounds(suite, pd.concat([records, *others]), no_gains(suite)), "accuracy-rounds")
    assert ax.lines[0].get_ydata().tolist() == pytest.approx([55.0, 75.0])


def test_clients_never_sampled_are_left_out_where_the_protocol_says_so() -> None:
    suite = a_suite(("fedvpt",), settings=(a_setting(methods=("fedvpt",), protocol={"never_sampled": "exclude"}),))
    records = records_of(suite).assign(participated=lambda frame: frame["client"] == 0)
    [ax] = drawn(figures_rounds(suite, records, no_gains(suite)), "accuracy-rounds")
    assert ax.lines[0].get_ydata().tolist() == pytest.approx([50.0, 70.0])


def test_many_settings_take_one_figure_per_table() -> None:
    settings = [a_setting(f"m={m}", ("fedvpt",), table=table) for table in ("A", "B") for m in (1, 2, 3, 4)]
    suite = Suite("many", "", BACKBONE, (0,), tuple(settings))
    first, second = figures_spread(suite, records_of(suite))
    assert [first.name, second.name] == ["client-spread-1", "client-spread-2"]
    assert second.title.endswith(": B")
    assert len(second.figure.axes) == 4


# -- V-sweep --------------------------------------------------------------------------------------------------------


def a_sweep(dataset: str = "glyph-domains") -> tuple[Suite, pd.DataFrame]:
    setting = a_setting("m=6", ("pfedbayespt",), kind="vsweep", published="DomainNet", dataset=dataset)
    suite = Suite("v", "", BACKBONE, TWO, (setting,))
    return suite, results_frame(suite, average_samples_1=[0.50, 0.60], average_samples_2=[0.52, 0.66])


def test_v_sweep_shows_accuracy_and_the_paired_difference_with_its_interval() -> None:
    suite, results = a_sweep()
    assert sweep(results)["value"].tolist() == pytest.approx([50.0, 52.0, 60.0, 66.0])
    records = pd.concat(
        records_frame({(0, "pfedbayespt", seed): [levels] * 2 for seed in TWO}).assign(samples=v)
        for v, levels in ((1, [0.50, 0.60, 0.55]), (2, [0.52, 0.66, 0.58]))
    )
    summary = make_numbers(suite, results, records)
    left, right = drawn(figures_vsweep(suite, results, summary), "v-sweep")
    assert left.lines[0].get_xdata().tolist() == [1, 2]
    assert left.lines[0].get_ydata().tolist() == pytest.approx([55.0, 59.0])
    assert band_edges(left) == [pytest.approx((55 - 10 / 2**0.5, 59 + 14 / 2**0.5))]
    assert right.lines[0].get_xydata().tolist() == [[2, pytest.approx(11 / 3)]]
    [low, high] = right.lines[1].get_ydata()[0], right.lines[2].get_ydata()[0]
    [gain] = [number.gain for number in summary if number.gain]
    assert (low, high) == pytest.approx((gain.low, gain.high))


def test_the_published_point_is_for_its_own_data_only() -> None:
    glyphs, results = a_sweep()
    assert published_points(glyphs.settings[0], summary_of(glyphs, results)) == []
    domainnet, results = a_sweep("domainnet")
    summary = summary_of(domainnet, results)
    assert published_points(domainnet.settings[0], summary) == [(5, 89.90)]
    left, _ = drawn(figures_vsweep(domainnet, results, summary), "v-sweep")
    assert left.lines[1].get_xydata().tolist() == [[5, 89.90]]
    setting = a_setting("s=50", ("pfedbayespt",), kind="vsweep", published="CIFAR-100", dataset="cifar100")
    cifar = Suite("v", "", BACKBONE, TWO, (dataclasses.replace(setting, partition="classes:s=50"),))
    assert published_points(cifar.settings[0], summary_of(cifar, results_frame(cifar))) == [(5, 82.21)]


def test_the_published_point_is_read_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "paper").mkdir()
    line = "table,dataset,setting,metric,method,value\n1,DomainNet,m=6,Average,pFedBayesPT,12.5\n"
    (tmp_path / "paper" / "vit_paper_results.csv").write_text(line)
    suite, results = a_sweep("domainnet")
    assert published_points(suite.settings[0], summary_of(suite, results, tmp_path)) == [(5, 12.5)]


# -- cost -----------------------------------------------------------------------------------------------------------


def test_bytes_are_those_of_one_client() -> None:
    suite = a_suite(("fedvpt",), TWO)
    assert bytes_sent(rounds_of(suite, bytes_up=800)).to_dict() == {(0, "fedvpt"): 400.0}


def test_a_method_that_lacks_a_setting_is_not_averaged_with_others() -> None:
    suite = a_suite(("fedvpt", "sgpt"), m=(1, 2))
    results = results_frame(suite, average=[0.5, 0.6, 0.7, 0.8])
    results.loc[3, "status"] = "failed"  # sgpt at m=2
    assert whole_tables(results)["row"].tolist() == ["fedvpt", "fedvpt"]


def test_accuracy_against_bytes_is_the_mean_over_settings_with_the_deviation_over_seeds() -> None:
    suite = a_suite(("fedvpt",), TWO, m=(1, 2))
    results = results_frame(suite, average=[0.5, 0.6, 0.7, 0.8])  # seeds of m=1, then of m=2
    collected = recorded(suite, results, records_of(suite), rounds_of(suite))
    [ax] = drawn(figures_cost.figures_cost(collected, no_data), "accuracy-bytes")
    [[point, _, (bar,)]] = ax.containers
    assert point.get_xydata().tolist() == [[400.0, pytest.approx(65.0)]]
    low, high = bar.get_segments()[0][:, 1]
    assert (high - low) / 2 == pytest.approx(10 / 2**0.5)


def test_a_method_that_sends_nothing_has_a_place() -> None:
    suite = a_suite(("head-tune", "fedvpt"))
    rounds = rounds_of(suite)
    rounds.loc[rounds["row"] == "head-tune", "bytes_up"] = 0
    results = results_frame(suite, average=[0.5, 0.6])
    collected = recorded(suite, results, records_of(suite), rounds)
    [ax] = drawn(figures_cost.figures_cost(collected, no_data), "accuracy-bytes")
    assert ax.get_xscale() == "symlog"
    assert ax.get_xticks().tolist() == [0, 100]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0 B", "100 B"]


def test_compute_counts_epochs_rounds_participation_and_features(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = {"rounds": 20, "participation": 0.25}
    suite = a_suite(("fedvpt",), settings=(a_setting(methods=("fedvpt",), protocol=protocol),))
    monkeypatch.setattr(figures_cost, "image_flops", lambda *_: (3e9, 7e9))
    results = results_frame(suite, average=[0.5])
    collected = recorded(suite, results, records_of(suite), rounds_of(suite))
    assert compute(collected, results, load_dataset, {}).to_dict() == {(0, "fedvpt"): 20 * 0.25 * 3 + 7}


def test_flops_of_an_image_count_each_stage_for_its_epochs() -> None:
    setting = a_setting(methods=("sgpt",), protocol={"epochs": 3})
    cell = Suite("one", "", BACKBONE, (0,), (setting,)).cells()[0]
    backbone = load_backbone(BACKBONE, device="meta")
    spent = cost(meta_method("sgpt", backbone, 10, **cell.params), 1, 2, kinds=())
    assert len(spent.flops) == 4  # two stages, the beginning and the end of the visit
    assert image_flops(cell, backbone, 10)[0] == (3 * spent.train_flops + spent.flops["end"]) / 2


def test_frozen_features_are_paid_once() -> None:
    setting = a_setting(methods=("head-tune",), protocol={"epochs": 3})
    cell = Suite("one", "", BACKBONE, (0,), (setting,)).cells()[0]
    visit, once = image_flops(cell, load_backbone(BACKBONE, device="meta"), 10)
    assert visit == 3 * 2 * 2 * 96 * 10  # epochs, forward and gradient of the weights, a product and a sum
    assert once == 8_616_576  # micro-vit forward


# -- clients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "dots"), [("finetune", [70.0, 80.0]), ("exclude", [70.0])])
def test_clients_that_never_took_part_are_drawn_by_policy(policy: str, dots: list[float]) -> None:
    protocol = {"rounds": 2, "last": 1, "never_sampled": policy}
    suite = a_suite(("fedvpt",), settings=(a_setting(methods=("fedvpt",), protocol=protocol),))
    records = records_of(suite).assign(participated=lambda frame: frame["client"] == 0)
    [ax] = drawn(figures_spread(suite, records), "client-spread")
    assert ax.lines[0].get_xdata().tolist() == pytest.approx(dots)


def test_spread_names_every_method_once() -> None:
    suite = a_suite(("head-tune", "fedvpt"), TWO)
    [ax] = drawn(figures_spread(suite, records_of(suite)), "client-spread")
    assert [label.get_text() for label in ax.get_yticklabels()] == ["No prompt", "FedVPT"]


def test_who_has_what_counts_train_images() -> None:
    suite = a_suite(settings=(a_setting(partition="domains:m=1,shots=3"),))
    partition = make_partition(parse_partition("domains:m=1,shots=3"), load_dataset("glyph-domains"), 0)
    records = records_of(suite, partition=partition.hash[:16])
    ax, _ = drawn(figures_partition(suite, records, load_dataset), "partition-glyph-domains")
    assert np.array_equal(ax.images[0].get_array().filled(0), 30 * np.eye(6))  # ten classes, three shots


def test_another_partition_than_the_recorded_one_is_not_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    suite = a_suite()
    assert list(figures_partition(suite, records_of(suite, partition="0123"), load_dataset)) == []
    assert "than the recorded 0123" in capsys.readouterr().err


def test_data_that_are_not_at_hand_cost_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    suite = a_suite()
    assert list(figures_partition(suite, records_of(suite, partition="0123"), no_data)) == []
    assert capsys.readouterr().err.startswith("note: no picture of who has what in glyph-domains: ")


# -- all together ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_files_are_valid_and_the_same_each_time(tmp_path: Path) -> None:
    suite = a_suite(("fedvpt", "sgpt"), TWO)
    results = results_frame(suite).assign(status="missing")
    frames = recorded(suite, results, records_of(suite), rounds_of(suite)), summary_of(suite, results)
    figures = write_figures(*frames, tmp_path / "a", trials(tau=1.0))
    assert [figure.name for figure in figures] == ["accuracy-rounds", "client-spread", "tuning-lr"]
    for figure in figures:
        with Image.open(figure.png) as image:
            image.verify()
            assert image.format == "PNG"
            assert image.info["dpi"][0] == pytest.approx(200, abs=0.1)
        pdf = figure.pdf.read_bytes()
        assert pdf.startswith(b"%PDF")
        assert b"/FontFile2" in pdf  # fonts are embedded
        assert b"/CreationDate" not in pdf
        assert figure.caption.endswith(".")
    for figure in write_figures(*frames, tmp_path / "b", trials(tau=1.0)):
        assert figure.png.read_bytes() == (tmp_path / "a" / figure.png.name).read_bytes()
        assert figure.pdf.read_bytes() == (tmp_path / "a" / figure.pdf.name).read_bytes()


@pytest.mark.slow
def test_axes_have_labels_with_units(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = a_suite(("fedvpt",), TWO)
    records, rounds, results = records_of(suite), rounds_of(suite), results_frame(suite, average=[0.5, 0.6])
    monkeypatch.setattr(figures_cost, "image_flops", lambda *_: (1e9, 0.0))
    swept = a_sweep()
    figures = [
        *figures_rounds(suite, records, no_gains(suite)),
        *figures_cost.figures_cost(recorded(suite, results, records, rounds), load_dataset),
        *figures_vsweep(*swept, summary_of(*swept)),
        *figures_spread(suite, records),
        *figures_tuning(trials()),
    ]
    labels = {f.name: (f.figure.axes[0].get_xlabel(), f.figure.axes[0].get_ylabel()) for f in figures}
    assert labels == {
        "accuracy-rounds": ("round", "average accuracy (%)"),
        "accuracy-bytes": ("sent by a client in a round", "average accuracy (%)"),  # ticks say kB, MB
        "accuracy-compute": ("training compute (GFLOPs per image and run)", "average accuracy (%)"),
        "v-sweep": ("averaged draws V", "average accuracy (%)"),
        "client-spread": ("accuracy of a client (%)", ""),  # ticks are methods
        "tuning-lr": ("lr", "validation accuracy (%)"),
        "tuning-tau": ("tau", "validation accuracy (%)"),
    }


@pytest.mark.slow
def test_an_unfinished_suite_draws_what_there_is(
    tmp_path: Path, uri: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = every_kind()
    run_all(suite, uri, tmp_path, leave=4)
    monkeypatch.setattr(figures_cost, "image_flops", lambda *_: (1e9, 0.0))
    collected = collect(suite, uri)
    summary = summary_of(suite, collected.results)
    names = [figure.name for figure in write_figures(collected, summary, tmp_path / "figures")]
    assert names == ["accuracy-rounds", "accuracy-bytes", "accuracy-compute", "v-sweep", "client-spread"]
    assert capsys.readouterr().err.startswith("note: no picture of who has what")  # its hash is made up


def test_a_suite_without_results_has_no_figures(tmp_path: Path, uri: str) -> None:
    collected = collect(every_kind(), uri)
    summary = summary_of(collected.suite, collected.results)
    assert write_figures(collected, summary, tmp_path / "figures") == []


def test_results_are_drawn_by_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = a_suite(settings=(a_setting(methods=("fedvpt",), policies=("local", "global", "global_then_ft")),))
    results = results_frame(suite).assign(average=0.5)
    collected = recorded(suite, results, records_of(suite), rounds_of(suite))
    monkeypatch.setattr(write, "load_dataset", lambda name, **_: no_data(name))
    names = [figure.name for figure in write_figures(collected, summary_of(suite, results), tmp_path)]
    assert [name for name in names if name.startswith("accuracy-rounds")] == [
        f"accuracy-rounds-{policy}" for policy in ("local", "global", "global-then-ft")
    ]
