"""Printed values next to ours: where they are found, and all that is known to differ from how they were made."""

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, asdict, fields, replace
from math import isnan
from typing import Any, NamedTuple

from fedprompt.datasets import parse_partition, short_name
from fedprompt.harness.federation.protocol import reported_rounds
from fedprompt.harness.report.collect import METRICS
from fedprompt.harness.report.document import MISSING, Column, Entry, Grid, Note
from fedprompt.harness.report.notes import RECIPE, USUAL
from fedprompt.harness.report.numbers import Number, grouped
from fedprompt.harness.report.papers import Paper, printed_source
from fedprompt.harness.report.tables import mark_notes, mean_and_spread, result_entry, row_titles, signed, slug
from fedprompt.harness.report.values import protocol_of
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.suite import Setting, Suite
from fedprompt.methods import registry

CAUTION = "Not comparable, for orientation only"
NAMES = {"length": "prompt length", "lr": "learning rate", "head_lr": "learning rate of the head"}
UNPRINTED = ("momentum", "weight_decay", "batch_size")  # of the protocol: the paper does not give them
TUNED = "tuned"


def about_papers(suite: Suite, papers: Mapping[str, Paper]) -> list[str]:
    """What to know about the printed values as a whole, paper by paper."""
    sources = dict.fromkeys(printed_source(setting.published) for setting in suite.settings if setting.published)
    lines = []
    for name in dict.fromkeys(name for name, _ in sources if name in papers):
        paper = papers[name]
        abouts = {d: paper.protocols[d].about for source, d in sources if source == name and d in paper.protocols}
        lines += [f"Published values: {paper.citation}. {paper.general}"]
        lines += [f"{dataset}: {about}" for dataset, about in abouts.items() if about]
    return lines


def published_grids(suite: Suite, numbers: Sequence[Number], papers: Mapping[str, Paper]) -> Iterator[Grid]:
    """One table per table of ours and metric that has printed values: ours, the paper's, the difference."""
    places: dict[tuple[int, str, str], Number] = {}
    for number in numbers:  # of several policies, the one that has a printed value
        known = places.setdefault((number.column, number.row, number.metric), number)
        if known.printed is None and number.printed is not None:
            places[number.column, number.row, number.metric] = number
    shown = [number for number in numbers if places[number.column, number.row, number.metric] is number]
    for (table, _, metric), part in grouped(shown, lambda n: (n.table, n.kind, n.metric)).items():
        rows = {number.row for number in part if number.printed}
        columns = {number.column for number in part if number.printed}
        part = [number for number in part if number.row in rows and number.column in columns]
        if part:
            yield _grid(suite, table, metric, part, papers)


def _grid(suite: Suite, table: str, metric: str, part: Sequence[Number], papers: Mapping[str, Paper]) -> Grid:
    titles = row_titles(part)
    doubts = dict.fromkeys(text for number in part if number.printed for text in number.printed.doubts)
    letters = dict(zip(doubts, string.ascii_lowercase, strict=False))
    columns: list[Column] = []
    for numbers in grouped(part, lambda n: n.column).values():
        by_row = {number.row: number for number in numbers}
        trios = [_trio(by_row[row], letters) if row in by_row else (Entry(""),) * 3 for row in titles]
        columns += [
            Column(numbers[0].setting, head, entries)
            for head, entries in zip(("Ours", "Paper", "Difference"), zip(*trios, strict=True), strict=True)
        ]
    settings = [suite.settings[column] for column in dict.fromkeys(number.column for number in part)]
    sources = [papers[name] for name in dict.fromkeys(printed_source(each.published)[0] for each in settings)]
    protocol = joined(("", change) for each in settings for change in protocol_differences(suite, each, papers))
    return Grid(
        f"{slug(table)}-published-{metric.replace('_', '-')}",
        f"{table}: {METRICS[metric]} compared with the published values",
        tuple(titles.values()),
        tuple(columns),
        caution=_caution(sources, protocol, *_method_texts(suite, [number for number in part if number.printed])),
        aside=bool(protocol),
        notes=(*(Note(letter, text) for text, letter in letters.items()), *mark_notes(columns)),
    )


def _method_texts(suite: Suite, printed: Sequence[Number]) -> tuple[str, str]:
    """Where the cells of the printed rows depart from the paper, and ours of what the paper does not give."""
    cells = [
        suite.cell(setting, next(row for row in setting.rows if row.key == number.row), suite.seeds[0], number.policy)
        for number, setting in ((number, suite.settings[number.column]) for number in printed)
    ]
    changes = [
        (number.title, change)
        for number, cell in zip(printed, cells, strict=True)
        for change in method_differences(suite, cell)
    ]
    protocols = [asdict(cell.protocol) for cell in cells]
    names = (*UNPRINTED, *(name for name in RECIPE if any(protocol[name] != USUAL[name] for protocol in protocols)))
    values = {name: dict.fromkeys(_text(protocol[name]) for protocol in protocols) for name in names}
    unprinted = ", ".join(f"{name.replace('_', ' ')} {' or '.join(texts)}" for name, texts in values.items())
    return joined(changes), unprinted


def _caution(papers: Sequence[Paper], protocol: str, methods: str, unprinted: str) -> str:
    """All that is known to differ, with the paper's in brackets; what cannot be compared is said first."""
    changes = "; ".join(filter(None, (protocol, methods)))
    first = f"{CAUTION}. " if protocol else ""
    named = f"Differs from the paper (in brackets): {changes}. " if changes else ""
    heads = "Heads are treated as in each method's paper. " if any(paper.has_heads for paper in papers) else ""
    source = f"Published values: {'; '.join(paper.citation for paper in papers)}."
    return f"{first}{named}{heads}Ours where the paper is silent: {unprinted}. {source}"


def _trio(number: Number, letters: Mapping[str, str]) -> tuple[Entry, Entry, Entry]:
    """Ours, theirs with the letters of its doubts, the difference."""
    ours = replace(result_entry(number), bold=False)  # not all rows of its column are here
    if number.printed is None:
        return ours, Entry(MISSING), Entry(MISSING)
    value, std, doubts = number.printed
    marks = "".join(sorted(letters[text] for text in doubts))
    difference = MISSING if isnan(number.mean) else signed(number.mean - value)
    return ours, Entry(mean_and_spread(value, std), marks=marks), Entry(difference)


# -- what differs from the paper --------------------------------------------------------------------------------------


class Change(NamedTuple):
    """Something that differs from the paper."""

    what: str
    ours: str
    theirs: str


def joined(changes: Iterable[tuple[str, Change]]) -> str:
    """Changes of several settings and methods (by title, or none) as one text, each named once.

    Such as `seeds 0, 1 (0, 1, 2)` or `prompt length 4 (10) of FedVPT, FedVPT-D`.
    """
    ours: dict[tuple[str, str, str], list[str]] = {}
    for title, change in changes:
        values = ours.setdefault((change.what, change.theirs, title), [])
        values += [change.ours] * (change.ours not in values)
    titles: dict[str, list[str]] = {}
    for (what, theirs, title), values in ours.items():
        titles.setdefault(f"{what} {' or '.join(values)} ({theirs})", []).append(title)
    return "; ".join(text + f" of {', '.join(names)}" * any(names) for text, names in titles.items())


def protocol_differences(suite: Suite, setting: Setting, papers: Mapping[str, Paper]) -> list[Change]:
    """Where a setting departs from the paper whose values it shows; empty if they are comparable."""
    source, dataset = printed_source(setting.published)
    paper = papers[source].protocols.get(dataset) if source in papers else None
    if paper is None:
        return [Change("protocol", "of this suite", f"that of {setting.published} is not known here")]
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
        "seeds": tuple(", ".join(map(str, seeds)) for seeds in (suite.seeds, paper.seeds)),
    }
    return [Change(name, str(ours), str(theirs)) for name, (ours, theirs) in compared.items() if ours != theirs]


def _architecture(name: str) -> str:
    """As papers write it: ViT-B/16 whatever its weights, and whichever library builds it."""
    if name.startswith("vit_base_patch16"):
        return "ViT-B/16"
    return name.replace("clip:", "CLIP ").removesuffix("-quickgelu").replace("ViT-B-16", "ViT-B/16")


def method_differences(suite: Suite, cell: Cell) -> Iterator[Change]:
    """Parameters of ``cell`` that are not the paper's, or that the paper tuned and the suite did not."""
    partition = str(parse_partition(cell.partition))
    tuned = suite.tuned.get((cell.method, cell.dataset, partition, cell.protocol.head), {})
    for field in fields(registry().get(cell.method).Params):
        theirs = _printed(field, by_domain=partition.startswith("domain"))
        ours = _text(cell.params.get(field.name, field.default))
        is_same = field.name in tuned if TUNED in theirs else _is_printed(ours, theirs)
        if theirs and not is_same:
            yield Change(NAMES.get(field.name, field.name), ours, theirs)


def _printed(field: "Field[Any]", by_domain: bool) -> str:
    """What the paper says of such data; rates that have a grid and no printed value were tuned."""
    paper, grid = str(field.metadata.get("paper", "")), field.metadata.get("grid", ())
    for_domains, depends, otherwise = paper.partition(" for domains, else ")
    if depends:
        return for_domains if by_domain else otherwise
    return paper or (TUNED if field.name.endswith("lr") and grid else "")


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _is_printed(ours: str, theirs: str) -> bool:
    """Some papers' values depend on the data, as in `20 (CIFAR), 4 (Office)`: any of them will do. 0 may mean all."""
    words = theirs.lower().replace("(", " ").replace(")", " ").replace(",", " ").split()
    return ours in words or (ours == "0" and theirs == "all")
