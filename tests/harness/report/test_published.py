"""Printed values next to ours: what is found, what is said about it."""

import dataclasses
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.report_suites import a_setting, a_suite, csv_of, make_numbers, results_frame, rows

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.core.errors import UserError
from fedprompt.harness.report import papers as papers_module
from fedprompt.harness.report.document import Grid
from fedprompt.harness.report.papers import Paper, load_papers
from fedprompt.harness.report.published import CAUTION, protocol_differences, published_grids
from fedprompt.harness.running.suite import Row, Setting, Suite
from fedprompt.harness.running.suite_file import load_suite

VIT = BackboneSpec("vit_base_patch16_224.orig_in21k", "hub", 224)


PAPERS = load_papers(Path("nowhere"))
FILES = Path(__file__).parents[3] / "results" / "paper"


def paper_setting(label: str, methods: tuple[str, ...], **change: object) -> Setting:
    """As the paper did it, on CIFAR-100 for labels with s."""
    if label.startswith("s"):
        common = {"dataset": "cifar100", "partition": f"classes:{label},clients=100", "published": "CIFAR-100"}
        return a_setting(label, methods, **{**common, "protocol": {"participation": 0.05}, **change})
    return a_setting(label, methods, **{"dataset": "domainnet", "published": "DomainNet", "protocol": {}, **change})


def paper_suite(*settings: Setting) -> Suite:
    return a_suite(seeds=(0, 1, 2), settings=settings, backbone=VIT)


def grids(suite: Suite, papers: Mapping[str, Paper] = PAPERS, **numbers: float) -> list[Grid]:
    results = results_frame(suite).assign(**numbers)
    return list(published_grids(suite, make_numbers(suite, results, papers=papers), papers))


def texts(grid: Grid) -> dict[str, list[str]]:
    """By row: the entries with their marks."""
    return {
        name: [column.entries[row].text + column.entries[row].marks for column in grid.columns]
        for row, name in enumerate(grid.rows)
    }


def test_all_printed_values_are_read() -> None:
    assert {name: len(paper.values) for name, paper in PAPERS.items()} == {"clip": 125, "vit": 188}


def test_the_results_folder_comes_before_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "paper").mkdir()
    line = "table,dataset,setting,metric,method,value\n1,DomainNet,m=1,Average,FedVPT,12.5\n"
    (tmp_path / "paper" / "vit_paper_results.csv").write_text(line)
    [paper] = load_papers(tmp_path).values()
    assert paper.values["value"].tolist() == [12.5]
    assert paper.citation == PAPERS["vit"].citation  # what is said of a paper comes with the package


@pytest.mark.parametrize("place", ["results/paper", "paper"])  # of a checkout, of an installed package
def test_the_package_brings_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    shutil.copytree(FILES, tmp_path / place)
    monkeypatch.setattr(papers_module, "ROOT", tmp_path)
    assert load_papers(tmp_path / "out").keys() == PAPERS.keys()


def test_without_files_there_are_no_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(papers_module, "ROOT", tmp_path / "nowhere")
    assert load_papers(tmp_path) == {}
    assert grids(paper_suite(paper_setting("m=1", ("fedvpt",))), {}, average=0.9) == []


def test_a_misspelt_key_is_named(tmp_path: Path) -> None:
    shutil.copytree(FILES, tmp_path / "paper")
    file = tmp_path / "paper" / "vit_paper.toml"
    file.write_text(file.read_text().replace("participation", "particpation", 1))
    with pytest.raises(UserError, match=r"vit_paper\.toml.*'particpation'"):
        load_papers(tmp_path)


def test_ours_theirs_and_the_difference() -> None:
    suite = paper_suite(paper_setting("m=1", ("fedvpt", "sgpt")), paper_setting("m=2", ("fedvpt", "sgpt")))
    average, worst = grids(suite, average=0.9, worst_local=0.5, average_exclude=0.9, worst_local_exclude=0.5)
    assert [column.metric for column in average.columns] == ["Ours", "Paper", "Difference"] * 2
    assert texts(average)["FedVPT"] == ["90.00±0.00", "88.30", "+1.70", "90.00±0.00", "86.16", "+3.84"]
    assert texts(worst)["FedVPT"][:3] == ["50.00±0.00", "61.09", "−11.09"]


def test_methods_and_settings_that_are_not_printed_are_left_out() -> None:
    variant = Row("deep-variant", "FedVPT-D", "fedvpt-d", {"length": 1})
    known = paper_setting("m=1", (), rows=(*rows("fedvpt", "pep-fedpt"), variant))
    suite = paper_suite(known, paper_setting("m=9", ("fedvpt",)))
    [average, _] = grids(suite, average=0.9)
    assert average.rows == ("FedVPT",)
    assert {column.setting for column in average.columns} == {"m=1"}


def test_both_variants_of_fedpr_stand_beside_the_one_printed_value() -> None:
    [average, _] = grids(paper_suite(paper_setting("m=1", ("fedpr-s", "fedpr-d"))), average=0.9)
    assert [texts(average)[title][1] for title in ("FedPR-S", "FedPR-D")] == ["90.60a", "90.60a"]
    assert average.notes[0].mark == "a"
    assert "better of FedPR's shallow and deep variants" in average.notes[0].text


@pytest.mark.parametrize(
    ("label", "method", "metric", "words"),
    [
        ("s=5", "sgpt", "worst_local", ["never been selected"]),
        ("s=50", "fedpr-d", "average", ["better of FedPR's", "Not a target: 16 points below"]),
        ("s=5", "head-tune", "average", ["94.47 at s=5"]),
        ("s=5", "pfedbayespt", "average", ["averages this method's head"]),
        ("s=5", "sgpt", "average", []),
        ("m=1", "head-tune", "worst_local", []),
    ],
)
def test_doubtful_values_have_footnotes(label: str, method: str, metric: str, words: list[str]) -> None:
    both = grids(paper_suite(paper_setting(label, (method,))), average=0.9, worst_local=0.5)
    grid = both[metric == "worst_local"]
    assert len(grid.notes) == len(words)
    for note, word in zip(grid.notes, words, strict=True):
        assert word in note.text
    assert grid.columns[1].entries[0].marks == "abc"[: len(words)]


def test_unseen_ablation_and_v5_have_printed_values() -> None:
    suite = paper_suite(
        paper_setting("m=1", ("sgpt",), kind="unseen", partition="domains:m=1,unseen=half", table="Unseen"),
        paper_setting("m=6", ("pfedbayespt-d",), kind="ablation", table="Ablation"),
        paper_setting("m=6", ("pfedbayespt",), kind="vsweep", table="V"),
    )
    numbers = {"average": 0.9, "unseen_average": 0.9, **{f"average_samples_{v}": 0.8 + 0.01 * v for v in range(1, 11)}}
    tables = grids(suite, **numbers)
    assert [grid.columns[1].entries[0].text for grid in tables] == ["89.23", "88.70", "89.90"]
    assert tables[2].columns[0].entries[0].text == "85.00±0.00"  # V=5
    assert "the settings of the ablation are not printed" in tables[1].notes[0].text.lower()


def test_the_papers_own_protocol_is_comparable() -> None:
    suite = paper_suite(paper_setting("m=1", ("fedvpt",)), paper_setting("s=5", ("fedvpt",)))
    assert [protocol_differences(suite, setting, PAPERS) for setting in suite.settings] == [[], []]
    for grid in grids(suite, average=0.9):
        assert not grid.aside
        assert grid.caution == (
            "Heads are treated as in each method's paper. "
            "Ours where the paper is silent: momentum 0.9, weight decay 1e-05, batch size 64. "
            "Published values: Ye et al., Instance-wise Personalized FL via Semi-Implicit Bayesian Prompt Tuning "
            "(pFedBayesPT), CIKM 2025."
        )


def test_values_stand_beside_the_papers_own_policy_only() -> None:
    policies = ("local", "global", "global_then_ft")
    suite = paper_suite(paper_setting("m=1", ("head-tune", "fedvpt"), policies=policies))
    results = results_frame(suite)
    results["average"] = results["policy"].map({"local": 0.7, "global": 0.8, "global_then_ft": 0.9})
    numbers = make_numbers(suite, results, papers=PAPERS)
    printed = [(number.row, number.policy) for number in numbers if number.printed and number.metric == "average"]
    assert printed == [("head-tune", "global"), ("fedvpt", "local")]
    average, _ = published_grids(suite, numbers, PAPERS)
    assert [texts(average)[title][0] for title in ("No prompt", "FedVPT")] == ["80.00±0.00", "70.00±0.00"]


def test_rates_and_prompts_that_are_not_the_papers_are_named_from_the_cell() -> None:
    params = {"fedvpt": {"length": 4}, "fedvpt-d": {"length": 4, "lr": 0.3}}
    setting = paper_setting("m=1", ("fedvpt", "fedvpt-d", "pfedpg"), params=params)
    tuned = {("pfedpg", "domainnet", "domains:m=1", "local"): {"lr": 0.1, "gen_lr": 0.02}}
    suite = dataclasses.replace(paper_suite(setting), tuned=tuned)
    caution = grids(suite, average=0.9)[0].caution
    assert "prompt length 4 (10) of FedVPT, FedVPT-D" in caution
    assert "learning rate 0.3 (0.01) of FedVPT-D" in caution
    assert "pFedPG" not in caution  # tuned, as in its paper
    untuned = grids(paper_suite(setting), average=0.9)[0].caution
    assert "gen_lr 0.1 (tuned) of pFedPG" in untuned


def test_the_kl_term_is_named_where_it_is_not_the_papers() -> None:
    setting = paper_setting("m=1", ("pfedbayespt",), params={"pfedbayespt": {"kl_reduction": "mean"}})
    assert "kl_reduction mean (sum) of pFedBayesPT" in grids(paper_suite(setting), average=0.9)[0].caution


def test_the_suites_of_the_paper_are_comparable() -> None:
    suite = load_suite("paper")
    assert [change for setting in suite.settings for change in protocol_differences(suite, setting, PAPERS)] == []


def test_what_differs_from_the_paper_is_named_once() -> None:
    settings = [
        paper_setting(f"m={m}", ("fedvpt",), dataset="glyph-domains", partition=f"domains:m={m},shots={shots}")
        for m, shots in ((1, 12), (2, 6))
    ]
    suite = dataclasses.replace(paper_suite(*settings), seeds=(0, 1))
    caution = grids(suite, average=0.9)[0].caution
    assert caution.startswith(CAUTION)
    assert "data set glyph-domains (DomainNet); train images per class and client 12 or 6 (all); seeds 0, 1" in caution


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"protocol": {"rounds": 20}}, ["rounds"]),
        ({"protocol": {"epochs": 1}}, ["local epochs"]),
        ({"protocol": {"participation": 0.5}}, ["participation"]),
        ({"partition": "domains:m=1,clients=12"}, ["clients"]),
        ({"partition": "domains:m=1,test_shots=3"}, ["test images per class and client"]),
        ({"published": "Elsewhere"}, ["protocol"]),
    ],
)
def test_each_difference_is_seen(change: dict[str, object], what: list[str]) -> None:
    setting = paper_setting("m=1", ("fedvpt",), **change)
    assert [change.what for change in protocol_differences(paper_suite(setting), setting, PAPERS)] == what


@pytest.mark.parametrize(
    ("backbone", "what"),
    [
        (BackboneSpec("vit_tiny_patch16_224", "hub", 128), ["backbone", "image size"]),
        (BackboneSpec("vit_base_patch16_224", "random", 224), ["weights"]),
    ],
)
def test_a_different_backbone_is_seen(backbone: BackboneSpec, what: list[str]) -> None:
    setting = paper_setting("m=1", ("fedvpt",))
    suite = dataclasses.replace(paper_suite(setting), backbone=backbone)
    assert [change.what for change in protocol_differences(suite, setting, PAPERS)] == what


def test_differences_are_in_the_summary() -> None:
    suite = paper_suite(paper_setting("m=1", ("fedvpt",)))
    line = csv_of(suite, results_frame(suite).assign(average=0.9), papers=PAPERS).set_index("metric").loc["average"]
    assert (line["published"], line["difference"]) == (88.30, pytest.approx(1.70))


def test_numbers_that_notes_quote_are_printed_values() -> None:
    texts = [paper.general for paper in PAPERS.values()]
    for paper in PAPERS.values():
        texts += [each.text for each in paper.doubts] + [each.about for each in paper.protocols.values()]
    quoted = re.findall(r"\b\d+\.\d\d\b", " ".join(texts))
    assert len(quoted) >= 5
    assert set(quoted) <= {f"{value:.2f}" for paper in PAPERS.values() for value in paper.values["value"]}


def test_the_recipe_is_named_where_it_is_not_the_default() -> None:
    usual, other = (
        grids(paper_suite(paper_setting("m=1", ("fedvpt",), protocol=protocol)), average=0.9)[0].caution
        for protocol in ({}, {"optimiser": "adam", "head_input": "normalised"})
    )
    assert "batch size 64. Published" in usual
    assert "batch size 64, optimiser adam, head input normalised. Published" in other
