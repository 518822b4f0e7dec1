"""What a report says, in which order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedprompt.harness.report import notes, tables
from fedprompt.harness.report.collect import Recorded
from fedprompt.harness.report.comparisons import Comparisons, Sweeps, compare_draws, compare_rows
from fedprompt.harness.report.document import Document, Grid, Note, Section, WrittenFigure, made_visible
from fedprompt.harness.report.findings import Sentences, ranks_by_policy, sentences, what_the_tables_say
from fedprompt.harness.report.measured import measured_results
from fedprompt.harness.report.numbers import Number, grouped, summarise
from fedprompt.harness.report.papers import Paper, load_papers
from fedprompt.harness.report.published import CAUTION, about_papers, published_grids
from fedprompt.harness.report.scores import further_measures
from fedprompt.harness.report.values import ACCURACY
from fedprompt.harness.running.suite import Suite

Draw = Callable[[Sequence[Number]], Sequence[WrittenFigure]]
PUBLISHED = "Compared with the published values"


class Tables(NamedTuple):
    """Every number of the tables of one measure, and what they rest on."""

    measure: str
    numbers: list[Number]
    comparisons: Comparisons
    sweeps: Sweeps


class Summary(NamedTuple):
    """Every number of a report, by measure, and the papers that some are compared with."""

    tables: list[Tables]  # of accuracy first
    papers: Mapping[str, Paper]

    @property
    def accuracies(self) -> list[Number]:
        """Those that figures and ranks are about, and papers print."""
        return self.tables[0].numbers

    @property
    def numbers(self) -> list[Number]:
        """Those of all measures."""
        return [number for tables in self.tables for number in tables.numbers]


def summarise_suite(suite: Suite, results: pd.DataFrame, records: pd.DataFrame, out: Path) -> Summary:
    """From the frames of `Recorded`; printed values are looked for in ``out`` first."""
    papers, measured = load_papers(out), {ACCURACY: results}
    with_scores = [name for name in further_measures(suite) if name in records and records[name].notna().any()]
    measured |= {name: measured_results(suite, results, records, name) for name in with_scores}
    summarised = []
    for measure, frame in measured.items():
        comparisons, sweeps = compare_rows(suite, frame, records, measure), compare_draws(suite, records, measure)
        numbers = summarise(suite, frame, comparisons, sweeps, papers, measure)
        summarised.append(Tables(measure, numbers, comparisons, sweeps))
    return Summary(summarised, papers)


def compose_report(
    recorded: Recorded, out: Path, draw: Draw | None = None, tuning_notes: Sequence[str] = ()
) -> tuple[Document, Summary]:
    """The document of what was recorded, and its numbers; ``draw`` makes the figures, and without it there are none."""
    summary = summarise_suite(recorded.suite, recorded.results, recorded.records, out)
    figures = draw(summary.accuracies) if draw else ()
    return made_visible(compose(recorded.suite, recorded.results, summary, figures, tuning_notes)), summary


def compose(
    suite: Suite,
    results: pd.DataFrame,
    summary: Summary,
    figures: Sequence[WrittenFigure],
    tuning_notes: Sequence[str] = (),
) -> Document:
    """The sections of a report, in the order in which they are read."""
    concluded = [sentences(suite, each.comparisons, each.sweeps, each.measure) for each in summary.tables]
    said = tuple(what_the_tables_say(suite, concluded, ranks_by_policy(summary.accuracies)))
    drawn = _by_place(figures)
    sections = [
        *([Section("What the tables say", said)] if said else []),
        Section("How to read the tables", (*notes.reading(suite, results), *_left_out(suite, summary))),
        *_result_sections(suite, summary.tables, concluded, drawn),
        *_published(suite, summary),
        *([notes.tuned_section(suite, results, tuning_notes, drawn["tuning"])] if suite.tuned else []),
        notes.provenance(suite, results, drawn["partition"]),
        notes.runs(suite, results),
    ]
    names = iter(tables.unique(grid.name for section in sections for grid in section.grids))
    named = (replace(s, grids=tuple(replace(grid, name=next(names)) for grid in s.grids)) for s in sections)
    return Document(suite.title, tuple(notes.alerts(suite, results)), tuple(notes.facts(suite, results)), tuple(named))


def _left_out(suite: Suite, summary: Summary) -> Iterator[str]:
    """Measures that the suite names and that nothing is known of."""
    without = [name for name in further_measures(suite) if name not in {tables.measure for tables in summary.tables}]
    if without:
        yield f"No tables of {', '.join(without)}: no finished run has scores (docs/measures.md)."


def _by_place(figures: Sequence[WrittenFigure]) -> dict[str, tuple[WrittenFigure, ...]]:
    """Figures by what they belong to: the V-sweep, tuning, partitions, or the main tables."""
    places = ("v-sweep", "tuning", "partition")
    by_place: dict[str, tuple[WrittenFigure, ...]] = dict.fromkeys((*places, "main"), ())
    for figure in figures:
        place = next((place for place in places if figure.name.startswith(place)), "main")
        by_place[place] = (*by_place[place], figure)
    return by_place


def _result_sections(
    suite: Suite,
    of_measures: Sequence[Tables],
    concluded: Sequence[Sentences],
    drawn: Mapping[str, tuple[WrittenFigure, ...]],
) -> Iterator[Section]:
    """One per table, those of accuracies first; figures follow the last of these that they belong to."""
    listed, *others = (list(_results(suite, *each)) for each in zip(of_measures, concluded, strict=True))
    last = {kind: number for number, (kind, _) in enumerate(listed)}
    main = last.get("heterogeneity", len(listed) - 1)
    for number, (kind, grids) in enumerate(listed):
        sweep_figures = drawn["v-sweep"] if kind == "vsweep" and number == last[kind] else ()
        yield Section(grids[0].title, grids=grids, figures=(*(drawn["main"] if number == main else ()), *sweep_figures))
    yield from (Section(grids[0].title, grids=grids) for sections in others for _, grids in sections)


def _results(suite: Suite, of_measure: Tables, concluded: Sentences) -> Iterator[tuple[str, tuple[Grid, ...]]]:
    """Kind and tables of every section."""
    for (title, kind), part in tables.tables_of(of_measure.numbers).items():
        if kind == "vsweep":
            yield kind, (_concluded(tables.vsweep(title, part), part, concluded),)
        elif kind == "ablation":
            yield kind, (_concluded(tables.ablation(suite, title, part), part, concluded),)
        else:
            for shown, grids in tables.results(title, part):
                yield kind, (_concluded(grids[0], shown, concluded), *grids[1:])


def _concluded(grid: Grid, part: Sequence[Number], concluded: Sentences) -> Grid:
    """The table with what can be concluded from it below; settings are named where there are several."""
    places = grouped(part, lambda n: (n.column, n.policy, n.setting))
    several = len({column for column, _, _ in places}) > 1
    lines = [
        Note("", f"{label}: {concluded[column, policy]}" if several else concluded[column, policy])
        for column, policy, label in places
        if (column, policy) in concluded
    ]
    return replace(grid, notes=(*lines, *grid.notes))


def _published(suite: Suite, summary: Summary) -> Iterator[Section]:
    grids = tuple(published_grids(suite, summary.accuracies, summary.papers))
    if grids:
        apart = [f"{CAUTION} where so marked: the protocol differs from the paper's."] * any(g.aside for g in grids)
        yield Section(PUBLISHED, (*apart, *about_papers(suite, summary.papers)), grids)
    elif any(setting.published for setting in suite.settings):
        where = "paper/*.csv, of the results folder or of the package"
        yield Section(PUBLISHED, (f"Left out: no printed values of these settings were found in {where}.",))
