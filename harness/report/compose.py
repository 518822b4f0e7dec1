"""What a report says, in which order."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.report import notes, tables
from fedprompt.harness.report.ablation import PairedDifferences, ablation, paired_differences, with_paired
from fedprompt.harness.report.collect import summarise_seeds
from fedprompt.harness.report.document import Document, Grid, Section
from fedprompt.harness.report.published import CAUTION, about_papers, load_published, published_grids, with_published

if TYPE_CHECKING:
    from fedprompt.harness.report.figures.write import WrittenFigure

PUBLISHED = "Beside the published values"


def summarise_suite(
    suite: Suite, results: pd.DataFrame, records: pd.DataFrame, out: Path
) -> tuple[pd.DataFrame, PairedDifferences]:
    """Every number of the tables in one frame, and the paired differences of the ablations."""
    paired = paired_differences(suite, results, records)
    summary = with_published(suite, summarise_seeds(results), load_published(out))
    return with_paired(summary, paired), paired


def compose(
    suite: Suite,
    results: pd.DataFrame,
    summary: pd.DataFrame,
    paired: PairedDifferences,
    figures: Sequence["WrittenFigure"],
) -> Document:
    sections = [
        *(Section(grid.title, grids=(grid,)) for grid in _results(suite, summary, paired)),
        *_published(suite, summary),
        Section("How to read the numbers", tuple(notes.reading(suite, results))),
        *([Section("Figures", figures=tuple(figures))] if figures else []),
        *([notes.tuned_section(suite, results)] if suite.tuned else []),
        notes.provenance(suite, results),
    ]
    names = iter(tables.unique(grid.name for section in sections for grid in section.grids))
    named = (replace(s, grids=tuple(replace(grid, name=next(names)) for grid in s.grids)) for s in sections)
    return Document(suite.title, tuple(notes.alerts(suite, results)), tuple(notes.facts(suite, results)), tuple(named))


def _results(suite: Suite, summary: pd.DataFrame, paired: PairedDifferences) -> Iterator[Grid]:
    simple = {"heterogeneity": tables.heterogeneity, "unseen": tables.unseen, "vsweep": tables.vsweep}
    for title, kind, part in tables.tables_of(summary):
        yield simple[kind](title, part) if kind in simple else ablation(suite, title, part, paired)


def _published(suite: Suite, summary: pd.DataFrame) -> Iterator[Section]:
    grids = tuple(published_grids(suite, summary))
    if grids:
        apart = [f"{CAUTION} where so marked: the protocol differs from the paper's."] * any(g.caution for g in grids)
        yield Section(PUBLISHED, (*apart, *about_papers(suite)), grids)
    elif any(setting.published for setting in suite.settings):
        where = "paper/*.csv, of the results folder or of the package"
        yield Section(PUBLISHED, (f"Left out: no printed values of these settings were found in {where}.",))
