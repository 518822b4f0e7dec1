"""Printed values beside ours.

They are read from `<out>/paper`, else from `results/paper` of the checkout, else from the installed package. Where none
has them, these tables are left out and a note says so.
"""

import itertools
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fedprompt.datasets import parse_partition
from fedprompt.harness.cells.suite import Setting, Suite
from fedprompt.harness.federation.policy import PAPER as PAPER_POLICY
from fedprompt.harness.report.accuracies import protocol_of
from fedprompt.harness.report.collect import METRICS
from fedprompt.harness.report.document import MISSING, Column, Entry, Grid, Note
from fedprompt.harness.report.doubts import DATA, DOUBTS, GENERAL
from fedprompt.harness.report.method_differences import MethodDifference, joined, method_differences, unprinted
from fedprompt.harness.report.tables import mark_notes, result_entry, row_titles, signed, slug

ROOT = Path(__file__).parents[2]  # of the checkout, or of the installed package
FILES = "*_paper_results.csv"
# By method, where the paper has another title.
PRINTED_AS = {"head-tune": "Head-Tune", "fedpr-s": "FedPR", "fedpr-d": "FedPR"}
# The tables in which each kind of setting is printed, and their name for each of our metrics.
PRINTED_IN = {
    "heterogeneity": ({1, 2}, {"average": "Average", "worst_local": "Worst Local"}),
    "unseen": ({3}, {"unseen_average": "Unseen Average"}),
    "ablation": ({4}, {"average": "Average"}),
    "vsweep": ({1, 2}, {"average_samples_5": "Average"}),  # of Figure 1 only V=5 is printed, in those tables
}
CAUTION = "Not comparable, for orientation only"


@dataclass(frozen=True)
class PaperProtocol:
    """How the paper ran the data set, where it may differ from ours."""

    dataset: str
    clients: int
    participation: float
    unseen_participation: float
    backbone: str = "vit_base_patch16"
    image_size: int = 224
    rounds: int = 100
    epochs: int = 5
    last: int = 10
    seeds: tuple[int, ...] = (0, 1, 2)


PAPER = {
    "DomainNet": PaperProtocol("domainnet", 6, 1.0, 1.0),
    "CIFAR-100": PaperProtocol("cifar100", 100, 0.05, 0.1),
}


def load_published(out: Path) -> pd.DataFrame | None:
    """Every printed value: paper, table, dataset, setting, metric, method, value; None where there are no files."""
    for folder in (out / "paper", ROOT / "results" / "paper", ROOT / "paper"):
        files = sorted(folder.glob(FILES))
        if files:
            frames = [pd.read_csv(file).assign(paper=file.name.partition("_")[0]) for file in files]
            return pd.concat(frames, ignore_index=True)
    return None


def with_published(suite: Suite, summary: pd.DataFrame, printed: pd.DataFrame | None) -> pd.DataFrame:
    """The summary with `published`, `difference` (ours minus theirs, in points) and `doubts` about the former."""
    rows = [_printed_row(suite, number, printed) for number in summary.to_dict("records")]
    values = [float("nan") if theirs is None else float(theirs["value"]) for theirs in rows]
    doubts = [() if theirs is None else tuple(d.text for d in DOUBTS if d.about(theirs)) for theirs in rows]
    about = pd.Series(doubts, summary.index, dtype=object)
    return summary.assign(published=values, difference=summary["mean"] - values, doubts=about)


def _printed_row(suite: Suite, number: Mapping[Any, Any], printed: pd.DataFrame | None) -> Mapping[Any, Any] | None:
    """The row of the paper's CSV that holds one of our numbers.

    Variants of a method have none, nor has a head that is not treated as in the method's paper.
    """
    setting = suite.settings[number["column"]]
    if printed is None or not setting.published or number["row"] != number["method"]:
        return None
    row = next(row for row in setting.rows if row.key == number["row"])
    if number["reading"] != setting.reading(row, PAPER_POLICY):
        return None
    tables, metrics = PRINTED_IN.get(setting.kind, (set(), {}))
    rows = printed[
        (printed["paper"] == "vit")
        & printed["table"].isin(tables)
        & (printed["dataset"] == setting.published)
        & (printed["setting"] == setting.label)
        & (printed["metric"] == metrics.get(number["metric"]))
        & (printed["method"] == PRINTED_AS.get(number["row"], number["title"]))
    ]
    return None if rows.empty else rows.iloc[0].to_dict()


def about_papers(suite: Suite) -> list[str]:
    """What to know about the printed values as a whole."""
    names = dict.fromkeys(setting.published for setting in suite.settings)
    return [GENERAL, *(DATA[name] for name in names if name in DATA)]


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
        caution=_caution(changes, *_method_texts(suite, printed)),
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


def _caution(protocol: str, methods: str, silent: str) -> str:
    """All that is known to differ, with the paper's in brackets; what cannot be compared is said first."""
    changes = "; ".join(filter(None, (protocol, methods)))
    first = f"{CAUTION}. " if protocol else ""
    named = f"Differs from the paper (in brackets): {changes}. " if changes else ""
    return f"{first}{named}Heads are treated as in each method's paper. Ours where the paper is silent: {silent}."


def _trio(number: pd.Series, letters: Mapping[str, str]) -> tuple[Entry, Entry, Entry]:
    """Ours, theirs with the letters of its doubts, the difference."""
    ours = replace(result_entry(number), bold=False)  # not all rows of its column are here
    if pd.isna(number["published"]):
        return ours, Entry(MISSING), Entry(MISSING)
    marks = "".join(sorted(letters[text] for text in number["doubts"]))
    difference = MISSING if pd.isna(number["difference"]) else signed(number["difference"])
    return ours, Entry(f"{number['published']:.2f}", marks=marks), Entry(difference)


class ProtocolDifference(NamedTuple):
    what: str
    ours: str
    theirs: str


def protocol_differences(suite: Suite, setting: Setting) -> list[ProtocolDifference]:
    """Where a setting departs from the paper whose values stand beside it; empty if they are comparable."""
    paper = PAPER.get(setting.published)
    if paper is None:
        return [ProtocolDifference("protocol", "of this suite", f"that of {setting.published} is not known here")]
    rules, spec, backbone = protocol_of(setting), parse_partition(setting.partition), suite.backbone
    share = paper.unseen_participation if setting.kind == "unseen" else paper.participation
    compared = {  # ours, the paper's
        "data set": (setting.dataset.replace(paper.dataset, setting.published), setting.published),
        "backbone": ("ViT-B/16" if backbone.name.startswith(paper.backbone) else backbone.name, "ViT-B/16"),
        "weights": ("random" if backbone.weights == "random" else "pretrained", "pretrained"),
        "image size": (backbone.image_size, paper.image_size),
        "rounds": (rules.rounds, paper.rounds),
        "rounds counted": (min(rules.last, rules.rounds), paper.last),
        "local epochs": (rules.epochs, paper.epochs),
        "participation": (rules.participation, share),
        "clients": (spec.clients or paper.clients, paper.clients),
        "train images a class and client": (spec.shots or "all", "all"),
        "test images a class and client": (spec.test_shots or "all", "all"),
        "seeds": (_listed(suite.seeds), _listed(paper.seeds)),
    }
    return [
        ProtocolDifference(name, str(ours), str(theirs)) for name, (ours, theirs) in compared.items() if ours != theirs
    ]


def _joined(changes: Iterable[ProtocolDifference]) -> str:
    """The differences of several settings as one text, each named once."""
    ours: dict[tuple[str, str], list[str]] = {}
    for change in changes:
        values = ours.setdefault((change.what, change.theirs), [])
        values += [change.ours] * (change.ours not in values)
    return "; ".join(f"{what} {' or '.join(values)} ({theirs})" for (what, theirs), values in ours.items())


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
