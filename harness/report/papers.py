"""The papers whose printed values are compared with ours: what they print where, how they ran it, what is doubtful.

Each is two files in `results/paper`: NAME_paper_results.csv has the values, NAME_paper.toml what is said about them.
They are read from `<out>/paper`, else from `results/paper` of the checkout, else from the installed package.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from fedprompt.core.errors import check_keys
from fedprompt.harness.federation.policy import PAPER as PAPER_POLICY
from fedprompt.harness.report.collect import Place
from fedprompt.harness.running.suite import Suite

T = TypeVar("T")

ROOT = Path(__file__).parents[2]  # of the checkout, or of the installed package
VALUES, ABOUT = "_paper_results.csv", "_paper.toml"  # ends of the files' names


@dataclass(frozen=True)
class PaperProtocol:
    """How the paper ran a data set, where it may differ from ours."""

    dataset: str  # our name of it
    participation: float
    unseen_participation: float = 1.0
    clients: int = 0  # 0: the partition tells
    partition: str = ""  # without shots; empty where the label of a setting tells
    shots: int = 0  # 0 means all images
    backbone: str = "ViT-B/16"
    image_size: int = 224
    rounds: int = 100
    epochs: int = 5
    last: int = 0  # rounds that are averaged; 0: the paper does not say
    seeds: tuple[int, ...] = (0, 1, 2)
    about: str = ""  # what to know about its values


@dataclass(frozen=True)
class Doubt:
    """A footnote of printed values: which ones, by the columns of the CSV file (no names: all of them)."""

    text: str
    table: tuple[str, ...] = ()
    dataset: tuple[str, ...] = ()
    setting: tuple[str, ...] = ()
    metric: tuple[str, ...] = ()
    method: tuple[str, ...] = ()

    def concerns(self, printed: Mapping[Any, Any]) -> bool:
        """Whether the footnote is about this line of the CSV file."""
        columns = [(printed[each.name], getattr(self, each.name)) for each in fields(self) if each.name != "text"]
        return all(not names or str(value) in names for value, names in columns)


@dataclass(frozen=True)
class PrintedIn:
    """Where the paper prints what settings of one kind measure."""

    tables: tuple[int, ...]
    metrics: Mapping[str, str]  # its names for our metrics


@dataclass(frozen=True)
class Paper:
    """One paper: its TOML file, and the values of its CSV file."""

    citation: str
    general: str  # what to know about its values as a whole
    printed: Mapping[str, PrintedIn]  # by kind of setting
    protocols: Mapping[str, PaperProtocol]  # by data set, as the paper calls it
    titles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of rows that the paper calls otherwise
    doubts: tuple[Doubt, ...] = ()
    has_heads: bool = True
    setting: str = (
        "(.*)"  # what of a value's `setting` is the label of ours; where it does not match, any label will do
    )
    values: pd.DataFrame = field(default_factory=pd.DataFrame)  # the CSV file, with the column `label`

    def titles_of(self, row: str, title: str) -> tuple[str, ...]:
        """What the paper calls a row of our tables."""
        return self.titles.get(row, (title,))


def load_papers(out: Path) -> dict[str, Paper]:
    """Every paper that has values, by its name; none where there are no files."""
    places = (out / "paper", ROOT / "results" / "paper", ROOT / "paper")
    files = next(filter(None, (sorted(place.glob(f"*{VALUES}")) for place in places)), [])
    papers = {}
    for file in files:
        name = file.name.removesuffix(VALUES)
        abouts = [path for place in (file.parent, *places) if (path := place / f"{name}{ABOUT}").is_file()]
        if abouts:
            papers[name] = _read(file, abouts[0])
    return papers


def _read(values: Path, about: Path) -> Paper:
    raw, frame = tomllib.loads(about.read_text()), pd.read_csv(values)

    def make(cls: type[T], table: Mapping[str, Any]) -> T:
        check_keys(table, [each.name for each in fields(cls)], str(about))  # type: ignore[arg-type]
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in table.items()})

    raw |= {
        "printed": {kind: make(PrintedIn, table) for kind, table in raw["printed"].items()},
        "protocols": {dataset: make(PaperProtocol, table) for dataset, table in raw["protocols"].items()},
        "doubts": [make(Doubt, table) for table in raw.get("doubts", ())],
        "titles": {row: tuple(titles) for row, titles in raw.get("titles", {}).items()},
    }
    paper = make(Paper, raw)
    labels = frame["setting"].str.extract(paper.setting, expand=False).fillna("")
    return replace(paper, values=frame.assign(label=labels))


def printed_source(published: str) -> tuple[str, str]:
    """Paper and data set that a setting names: `clip/DomainNet`, or `DomainNet` for the ViT paper."""
    paper, slash, dataset = published.rpartition("/")
    return (paper, dataset) if slash else ("vit", dataset)


class Printed(NamedTuple):
    """What a paper prints for one of our numbers."""

    value: float
    std: float  # NaN where the paper prints none
    doubts: tuple[str, ...]


def printed_value(suite: Suite, place: Place, metric: str, papers: Mapping[str, Paper]) -> Printed | None:
    """The value of the paper that the setting names.

    Variants of a method have none unless the paper prints them, nor has a head that is not treated as in the method's
    paper.
    """
    setting = suite.settings[place.column]
    name, dataset = printed_source(setting.published)
    paper, row = papers.get(name), next(row for row in setting.rows if row.key == place.row)
    if paper is None or not dataset or (row.key != row.method and row.key not in paper.titles):
        return None
    where = paper.printed.get(place.kind)
    if where is None or place.reading != setting.reading(row, PAPER_POLICY):
        return None
    values = paper.values
    found = values[
        values["table"].isin(where.tables)
        & (values["dataset"] == dataset)
        & values["label"].isin([place.setting, ""])
        & (values["metric"] == where.metrics.get(metric))
        & values["method"].isin(paper.titles_of(row.key, place.title))
    ]
    if found.empty:
        return None
    printed = found.iloc[0].to_dict()
    doubts = tuple(doubt.text for doubt in paper.doubts if doubt.concerns(printed))
    return Printed(float(printed["value"]), float(printed.get("std", "nan")), doubts)
