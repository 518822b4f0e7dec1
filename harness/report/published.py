"""Printed values beside ours.

They are read from `<out>/paper`, else from `results/paper` of the checkout, else from the installed package. Where none
has them, these tables are left out and a note says so.
"""

import itertools
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedprompt.datasets import parse_partition, short_name
from fedprompt.harness.federation.policy import PAPER as PAPER_POLICY
from fedprompt.harness.federation.protocol import reported_rounds
from fedprompt.harness.report.accuracies import protocol_of
from fedprompt.harness.report.collect import METRICS
from fedprompt.harness.report.document import MISSING, Column, Entry, Grid, Note
from fedprompt.harness.report.doubts import DOUBTS
from fedprompt.harness.report.method_differences import MethodDifference, joined, method_differences, unprinted
from fedprompt.harness.report.papers import PAPERS, Paper, printed_source, setting_labels
from fedprompt.harness.report.tables import mark_notes, mean_and_spread, result_entry, row_titles, signed, slug
from fedprompt.harness.running.suite import Setting, Suite

ROOT = Path(__file__).parents[2]  # of the checkout, or of the installed package
FILES = "*_paper_results.csv"
CAUTION = "Not comparable, for orientation only"


def load_published(out: Path) -> pd.DataFrame | None:
    """Every printed value: paper, table, dataset, setting, label, metric, method, value, std; None without files."""
    for folder in (out / "paper", ROOT / "results" / "paper", ROOT / "paper"):
        files = sorted(folder.glob(FILES))
        if files:
            return pd.concat([_read(file) for file in files], ignore_index=True)
    return None


def _read(file: Path) -> pd.DataFrame:
    paper, frame = file.name.partition("_")[0], pd.read_csv(file)
    return frame.assign(paper=paper, label=setting_labels(frame["setting"], paper))


def with_published(suite: Suite, summary: pd.DataFrame, printed: pd.DataFrame | None) -> pd.DataFrame:
    """The summary with `published`, its spread, `difference` (ours minus theirs, in points) and `doubts` about it."""
    rows = [_printed_row(suite, number, printed) for number in summary.to_dict("records")]
    values, spreads = (
        [float("nan") if theirs is None else float(theirs.get(name, "nan")) for theirs in rows]
        for name in ("value", "std")
    )
    doubts = [() if theirs is None else tuple(d.text for d in DOUBTS if d.about(theirs)) for theirs in rows]
    about = pd.Series(doubts, summary.index, dtype=object)
    difference = summary["mean"] - values
    return summary.assign(published=values, published_std=spreads, difference=difference, doubts=about)


def _printed_row(suite: Suite, number: Mapping[Any, Any], printed: pd.DataFrame | None) -> Mapping[Any, Any] | None:
    """The row of the paper's CSV that holds one of our numbers.

    Variants of a method have none unless the paper prints them, nor has a head that is not treated as in the method's
    paper.
    """
    setting, key = suite.settings[number["column"]], number["row"]
    source, dataset = printed_source(setting.published)
    paper = PAPERS.get(source)
    if printed is None or paper is None or not dataset or (key != number["method"] and key not in paper.titles):
        return None
    row = next(row for row in setting.rows if row.key == key)
    if number["reading"] != setting.reading(row, PAPER_POLICY):
        return None
    tables, metrics = paper.printed_in.get(setting.kind, (set(), {}))
    rows = printed[
        (printed["paper"] == source)
        & printed["table"].isin(tables)
        & (printed["dataset"] == dataset)
        & printed["label"].isin([setting.label, ""])
        & (printed["metric"] == metrics.get(number["metric"]))
        & printed["method"].isin(paper.titles.get(key, (number["title"],)))
    ]
    return None if rows.empty else rows.iloc[0].to_dict()


def _sources(suite: Suite) -> list[tuple[str, str]]:
    """Papers and data sets whose values the suite's settings show, each once."""
    return list(dict.fromkeys(printed_source(setting.published) for setting in suite.settings if setting.published))


def about_papers(suite: Suite) -> list[str]:
    """What to know about the printed values as a whole, paper by paper."""
    lines = []
    for name in dict.fromkeys(source for source, _ in _sources(suite)):
        if paper := PAPERS.get(name):
            datasets = [dataset for source, dataset in _sources(suite) if source == name and dataset in paper.about]
            lines += [f"Published values: {paper.citation}. {paper.general}"]
            lines += [f"{dataset}: {paper.about[dataset]}" for dataset in datasets]
    return lines


def published_grids(suite: Suite, summary: pd.DataFrame) -> Iterator[Grid]:
    """One table per table of ours and metric that has printed values: ours, the paper's, the difference."""
    # A number that is printed stands before the same row under other policies, which have no printed value.
    ordered = summary.sort_values("published", na_position="last", kind="stable", key=pd.isna)
    numbers = ordered.drop_duplicates(["column", "row", "metric"]).sort_index()
    for (table, _, metric), part in numbers.groupby(["table", "kind", "metric"], sort=False):
        rows, columns = (part.groupby(by)["published"].transform("count") > 0 for by in ("row", "column"))
        if (rows & columns).any():
            yield _grid(suite, str(table), str(metric), part[rows & columns])


def _grid(suite: Suite, table: str, metric: str, part: pd.DataFrame) -> Grid:
    titles = row_titles(part)
    letters = dict(zip(dict.fromkeys(itertools.chain(*part["doubts"])), string.ascii_lowercase, strict=False))
    columns: list[Column] = []
    for (_, label), numbers in part.groupby(["column", "setting"], sort=False):
        by_row = {number["row"]: number for _, number in numbers.iterrows()}
        trios = [_trio(by_row[key], letters) if key in by_row else (Entry(""),) * 3 for key in titles]
        columns += [
            Column(str(label), head, entries)
            for head, entries in zip(("Ours", "Paper", "Difference"), zip(*trios, strict=True), strict=True)
        ]
    settings = [suite.settings[column] for column in part["column"].unique()]
    changes = _joined(itertools.chain(*(protocol_differences(suite, setting) for setting in settings)))
    printed = part.dropna(subset=["published"])
    return Grid(
        f"{slug(table)}-published-{metric.replace('_', '-')}",
        f"{table}: {METRICS[metric]} beside the published values",
        tuple(titles.values()),
        tuple(columns),
        caution=_caution(_papers_of(settings), changes, *_method_texts(suite, printed)),
        aside=bool(changes),
        notes=(*(Note(letter, text) for text, letter in letters.items()), *mark_notes(columns)),
    )


def _method_texts(suite: Suite, printed: pd.DataFrame) -> tuple[str, str]:
    """Where the printed rows' cells depart from the paper, and what of them the paper does not give."""
    differences: list[tuple[str, MethodDifference]] = []
    protocols = []
    for number in printed.to_dict("records"):
        setting = suite.settings[number["column"]]
        row = next(row for row in setting.rows if row.key == number["row"])
        cell = suite.cell(setting, row, suite.seeds[0], number["policy"])
        differences += [(row.title, change) for change in method_differences(suite, cell)]
        protocols.append(asdict(cell.protocol))
    return joined(differences), unprinted(protocols)


def _papers_of(settings: Sequence[Setting]) -> list[Paper]:
    names = dict.fromkeys(printed_source(setting.published)[0] for setting in settings)
    return [PAPERS[name] for name in names if name in PAPERS]


def _caution(papers: Sequence[Paper], protocol: str, methods: str, silent: str) -> str:
    """All that is known to differ, with the paper's in brackets; what cannot be compared is said first."""
    changes = "; ".join(filter(None, (protocol, methods)))
    first = f"{CAUTION}. " if protocol else ""
    named = f"Differs from the paper (in brackets): {changes}. " if changes else ""
    heads = "Heads are treated as in each method's paper. " if any(paper.has_heads for paper in papers) else ""
    source = f"Published values: {'; '.join(paper.citation for paper in papers)}."
    return f"{first}{named}{heads}Ours where the paper is silent: {silent}. {source}"


def _trio(number: pd.Series, letters: Mapping[str, str]) -> tuple[Entry, Entry, Entry]:
    """Ours, theirs with the letters of its doubts, the difference."""
    ours = replace(result_entry(number), bold=False)  # not all rows of its column are here
    if pd.isna(number["published"]):
        return ours, Entry(MISSING), Entry(MISSING)
    marks = "".join(sorted(letters[text] for text in number["doubts"]))
    difference = MISSING if pd.isna(number["difference"]) else signed(number["difference"])
    return ours, Entry(mean_and_spread(number["published"], number["published_std"]), marks=marks), Entry(difference)


class ProtocolDifference(NamedTuple):
    what: str
    ours: str
    theirs: str


def protocol_differences(suite: Suite, setting: Setting) -> list[ProtocolDifference]:
    """Where a setting departs from the paper whose values stand beside it; empty if they are comparable."""
    source, dataset = printed_source(setting.published)
    paper = PAPERS[source].protocols.get(dataset) if source in PAPERS else None
    if paper is None:
        return [ProtocolDifference("protocol", "of this suite", f"that of {setting.published} is not known here")]
    rules, spec, backbone = protocol_of(setting), parse_partition(setting.partition), suite.backbone
    share = paper.unseen_participation if setting.kind == "unseen" else paper.participation
    reported = len(reported_rounds(rules.rounds, rules.last))
    whole = str(replace(spec, shots=0, test_shots=0, unseen="none"))
    compared = {  # ours, the paper's
        "data set": (short_name(setting.dataset).replace(paper.dataset, dataset), dataset),
        "partition": (whole, paper.partition or whole),
        "backbone": (_architecture(backbone.name), paper.backbone),
        "weights": ("random" if backbone.weights == "random" else "pretrained", "pretrained"),
        "image size": (backbone.image_size, paper.image_size),
        "rounds": (rules.rounds, paper.rounds),
        "rounds counted": (reported, paper.last or reported),
        "local epochs": (rules.epochs, paper.epochs),
        "participation": (rules.participation, share),
        "clients": (spec.clients or paper.clients, paper.clients or spec.clients),
        "train images per class and client": (spec.shots or "all", paper.shots or "all"),
        "test images per class and client": (spec.test_shots or "all", "all"),
        "seeds": (_listed(suite.seeds), _listed(paper.seeds)),
    }
    return [
        ProtocolDifference(name, str(ours), str(theirs)) for name, (ours, theirs) in compared.items() if ours != theirs
    ]


def _architecture(name: str) -> str:
    """As papers write it: ViT-B/16 whatever its weights, and whichever library builds it."""
    if name.startswith("vit_base_patch16"):
        return "ViT-B/16"
    return name.replace("clip:", "CLIP ").removesuffix("-quickgelu").replace("ViT-B-16", "ViT-B/16")


def _joined(changes: Iterable[ProtocolDifference]) -> str:
    """The differences of several settings as one text, each named once."""
    ours: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        values = ours.setdefault((change.what, change.theirs), [])
        values += [change.ours] * (change.ours not in values)
    return "; ".join(f"{what} {' or '.join(values)} ({theirs})" for (what, theirs), values in ours.items())


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
