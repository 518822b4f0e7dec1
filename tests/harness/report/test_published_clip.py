"""Tables 1 to 4 of pFedMoAP next to ours: what is found, what is said about its validity."""

from pathlib import Path

import pytest
from support.report_suites import a_setting, a_suite, make_numbers, results_frame, rows

from fedprompt.backbones.weights import BackboneSpec
from fedprompt.harness.report.document import Grid
from fedprompt.harness.report.papers import load_papers
from fedprompt.harness.report.published import CAUTION, about_papers, protocol_differences, published_grids
from fedprompt.harness.running.suite import Row, Setting, Suite
from fedprompt.harness.running.suite_file import load_suite

PAPERS = load_papers(Path("nowhere"))
RN50, VIT = (BackboneSpec(f"clip:{name}-quickgelu", "openai", 224) for name in ("RN50", "ViT-B-16"))


def clip_setting(name: str, *methods: str, **change: object) -> Setting:
    """As the paper ran the data set."""
    paper = PAPERS["clip"].protocols[name]
    common = {
        "dataset": paper.dataset,
        "partition": paper.partition + (f",shots={paper.shots}" if paper.shots else ""),
        "published": f"clip/{name}",
        "rows": rows(*methods),
        "protocol": {"rounds": paper.rounds, "epochs": 5, "participation": paper.participation},
    }
    return a_setting(name, **{**common, **change})


def clip_suite(*settings: Setting, backbone: BackboneSpec = RN50) -> Suite:
    return a_suite(seeds=(0, 1, 2), settings=settings, backbone=backbone)


def grid(suite: Suite) -> Grid:
    results = results_frame(suite).assign(average=0.9)
    [table] = published_grids(suite, make_numbers(suite, results, papers=PAPERS), PAPERS)
    return table


def printed_values(table: Grid) -> list[str]:
    return [entry.text for column in table.columns if column.metric == "Paper" for entry in column.entries]


@pytest.mark.parametrize(
    ("name", "method", "value"),
    [
        ("Flowers102", "promptfl", "72.80±1.14"),
        ("DTD", "fedotp", "87.64±0.70"),
        ("CIFAR10", "coop", "80.84±0.39"),
        ("DomainNet", "zs-clip", "9.81±0.30"),  # the average over domains, never that of one
        ("Office-Caltech10", "zs-clip", "9.40±0.77"),
    ],
)
def test_values_are_those_of_the_table_with_their_spread(name: str, method: str, value: str) -> None:
    assert printed_values(grid(clip_suite(clip_setting(name, method)))) == [value]


def test_pfedmoap_with_either_weight_of_the_own_prompt_is_found() -> None:
    without = Row("pfedmoap-lambda-0", "pFedMoAP, lambda = 0", "pfedmoap", {"local_weight": 0})
    table = grid(clip_suite(clip_setting("Flowers102", rows=(*rows("pfedmoap"), without))))
    assert printed_values(table) == ["98.41±0.04", "97.61±0.11"]


@pytest.mark.parametrize("name", ["DomainNet", "Office-Caltech10"])
def test_tables_two_and_four_never_stand_without_the_reason_why_they_are_invalid(name: str) -> None:
    suite = clip_suite(clip_setting(name, "coop", "promptfl"), backbone=VIT)
    table = grid(suite)
    marked = [entry.marks for column in table.columns if column.metric == "Paper" for entry in column.entries]
    assert marked == ["a", "a"]
    assert table.notes[0].text.startswith("Not a valid target: zero-shot CLIP is printed at chance")
    assert any("pairs images with other images' labels" in line for line in about_papers(suite, PAPERS))


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("promptfl", ["Images per class are not printed"]),
        ("prompt-fedamp", ["Second-hand", "Images per class are not printed"]),
        ("promptfl-ft", ["Second-hand", "Images per class are not printed"]),
        ("zs-clip", ["Nothing is trained", "Images per class are not printed"]),
    ],
)
def test_doubts_about_table_one(method: str, words: list[str]) -> None:
    notes = [note.text for note in grid(clip_suite(clip_setting("Flowers102", method))).notes]
    assert len(notes) == len(words)
    assert all(text.startswith(word) for text, word in zip(notes, words, strict=True))


@pytest.mark.parametrize("name", PAPERS["clip"].protocols)
def test_the_papers_own_protocol_is_comparable(name: str) -> None:
    backbone = RN50 if PAPERS["clip"].protocols[name].backbone == "CLIP RN50" else VIT
    suite = clip_suite(clip_setting(name, "promptfl"), backbone=backbone)
    assert protocol_differences(suite, suite.settings[0], PAPERS) == []


def test_another_backbone_is_named_in_the_caution() -> None:
    caution = grid(clip_suite(clip_setting("Flowers102", "promptfl"), backbone=VIT)).caution
    assert caution.startswith(CAUTION)
    assert "backbone CLIP ViT-B/16 (CLIP RN50)" in caution
    assert "Luo, Chen and Wu" in caution
    assert "ICLR 2025" in caution
    assert "Heads" not in caution


def test_another_number_of_clients_is_named() -> None:
    setting = clip_setting("CIFAR100", "promptfl", partition="dirichlet:alpha=0.5,clients=10")
    assert [change.what for change in protocol_differences(clip_suite(setting), setting, PAPERS)] == ["partition"]


def test_every_published_block_names_authors_venue_and_year() -> None:
    for paper in PAPERS.values():
        assert paper.citation[-4:].isdigit()
        assert set(paper.values["dataset"]) == set(paper.protocols)


def test_values_of_one_paper_are_not_shown_for_the_other() -> None:
    setting = clip_setting("DomainNet", "head-tune")
    suite = clip_suite(setting)
    numbers = make_numbers(suite, results_frame(suite).assign(average=0.9), papers=PAPERS)
    assert not any(number.printed for number in numbers)


def test_the_suites_of_the_clip_paper_are_comparable() -> None:
    shown = set()
    for name in ("paper-clip-fewshot", "paper-clip-cifar", "paper-clip-domains"):
        suite = load_suite(name)
        for setting in suite.settings:
            if setting.published:
                assert protocol_differences(suite, setting, PAPERS) == []
                shown.add(setting.published.removeprefix("clip/"))
    assert shown == set(PAPERS["clip"].protocols)


def test_every_printed_method_is_a_row_of_the_few_shot_suite() -> None:
    suite = load_suite("paper-clip-fewshot")
    numbers = make_numbers(suite, results_frame(suite), papers=PAPERS)
    assert sum(number.printed is not None for number in numbers) == 55  # eleven methods on five data sets
