"""Suites of two clients and two rounds, and what the report makes of them."""

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.figure
import pandas as pd
from rich.console import Console

from fedprompt.harness.federation.policy import readings
from fedprompt.harness.measuring.evaluation import Record
from fedprompt.harness.recording.tracker import sync
from fedprompt.harness.report.collect import NUMBERS, Recorded
from fedprompt.harness.report.comparisons import compare_draws, compare_rows
from fedprompt.harness.report.compose import compose, summarise_suite
from fedprompt.harness.report.document import Document, WrittenFigure
from fedprompt.harness.report.numbers import Number, numbers_frame, summarise
from fedprompt.harness.report.papers import Paper
from fedprompt.harness.report.write import write_report
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.suite import Row, Setting, Suite
from fedprompt.methods import registry
from support.run_folders import BACKBONE, done_folder

ROUNDS = {"rounds": 2, "last": 2}


def rows(*methods: str) -> tuple[Row, ...]:
    resolved = [(key, *registry().resolve(key)) for key in methods]
    return tuple(Row(key, registry().title(key), method, policy=policy) for key, method, policy in resolved)


def a_setting(label: str = "m=1", methods: Sequence[str] = ("head-tune", "fedvpt"), **change: Any) -> Setting:
    setting = Setting("Feature shift", label, "glyph-domains", f"domains:{label}", rows(*methods), protocol=ROUNDS)
    return dataclasses.replace(setting, **change)


def a_suite(methods: Sequence[str] = ("head-tune", "fedvpt"), seeds: tuple[int, ...] = (0,), **change: Any) -> Suite:
    settings = tuple(a_setting(f"m={m}", methods) for m in change.pop("m", (1,)))
    return dataclasses.replace(Suite("tiny", "A tiny suite", BACKBONE, seeds, settings), **change)


def every_kind(seeds: tuple[int, ...] = (0, 1)) -> Suite:
    """One setting of each kind; the full method's cell is shown in three of them."""
    sweep = {**ROUNDS, "sweep": True}
    variant = Row("no-mixture", "pFedBayesPT, S = 0", "pfedbayespt", {"mixture": 0})
    settings = (
        a_setting("m=1", ("head-tune", "fedpr-s", "pfedbayespt"), published="DomainNet", protocol=sweep),
        a_setting("m=2", table="Unseen", kind="unseen", partition="domains:m=2,unseen=half", published="DomainNet"),
        a_setting(
            "m=1",
            table="Ablation",
            kind="ablation",
            rows=(*rows("pfedbayespt"), variant),
            reference="pfedbayespt",
            protocol=sweep,
        ),
        a_setting("m=1", ("pfedbayespt",), table="V-sweep", kind="vsweep", protocol=sweep),
    )
    return Suite("tiny", "Every kind & more", BACKBONE, seeds, settings)


def run_all(suite: Suite, uri: str, out: Path, leave: int = 0) -> None:
    """Finish every cell but the last ``leave``; each with its own accuracies, unseen clients and all V."""
    cells = suite.cells()
    for place, cell in enumerate(cells[: len(cells) - leave]):
        levels = [[0.3 + 0.01 * place, 0.5], [0.4, 0.6 + 0.01 * cell.seed]]
        done_folder(out, cell, levels, extra=[*_unseen(cell), *_sweep(cell), *finetuned(cell, levels)])
    sync(out, uri)


def _unseen(cell: Cell) -> list[Record]:
    if "unseen" not in cell.partition:
        return []
    return [
        Record(2, 2, "photo", 700 + cell.seed, 1000, False, unseen=True, policy=policy)
        for policy in readings(cell.protocol)
    ]


def _sweep(cell: Cell) -> list[Record]:
    if not cell.protocol.sweep:
        return []
    draws = [(round_, client, v) for round_ in (1, 2) for client in (0, 1) for v in range(1, 11)]
    return [
        Record(round_, client, "photo", 500 + v, 1000, True, samples=v, policy=policy)
        for policy in readings(cell.protocol)
        for round_, client, v in draws
    ]


def finetuned(cell: Cell, levels: Sequence[Sequence[float]], more: float = 0.1) -> list[Record]:
    """The second reading of a cell that has one: every client is better by ``more``."""
    if not cell.protocol.finetune_epochs:
        return []
    return [
        Record(round_, client, "photo", round(1000 * (level + more)), 1000, True, policy="global_then_ft")
        for round_, clients in enumerate(levels, start=1)
        for client, level in enumerate(clients)
    ]


def report(suite: Suite, uri: str, out: Path, width: int = 100) -> tuple[str, str, pd.DataFrame]:
    """(terminal, Markdown, CSV)"""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
    folder = write_report(suite, uri, out, console).parent
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue(), (folder / "report.md").read_text(), pd.read_csv(folder / "tables.csv")


def row_of(text: str, title: str) -> list[str]:
    """The columns of the first Markdown row with this title."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {title} |"))
    return [part.strip() for part in line.strip("|").split("|")]


def results_frame(suite: Suite, **numbers: Sequence[float]) -> pd.DataFrame:
    """The results of a suite whose cells are all finished, with these numbers in the suite's order."""
    lines = [
        {
            **dict.fromkeys(NUMBERS, float("nan")),
            **{"table": s.table, "kind": s.kind, "column": suite.settings.index(s), "setting": s.label},
            **{"row": row.key, "title": row.title, "policy": policy, "reading": s.reading(row, policy)},
            **{"cell": cell.hash, "method": cell.method, "moving": 0.0, "drift": 0.0, "untuned": False},
            **{"dataset": cell.dataset, "partition": cell.partition, "seed": cell.seed},
            **{"code": cell.code, "other_code": ""},
            **{"status": "finished", "reason": "", "commit": "", "partition_hash": "ab12", "data_checksum": "cd34"},
            **{"floats_up": 50.0, "floats_down": 100.0, "rounds_counted": 2.0},
        }
        for s, row, policy, cell in suite.planned()
    ]
    return pd.DataFrame(lines).assign(**{name: list(values) for name, values in numbers.items()})


def records_frame(
    accuracies: Mapping[tuple[int, str, int], Sequence[Sequence[float]]], policy: str = "paper", reading: str = "global"
) -> pd.DataFrame:
    """Records from the accuracies of rounds 1, 2, ... and clients, by (column, row, seed)."""
    columns = ["column", "row", "seed", "round", "client", "accuracy"]
    lines = [
        (column, row, seed, round_, client, accuracy)
        for (column, row, seed), table in accuracies.items()
        for round_, clients in enumerate(table, start=1)
        for client, accuracy in enumerate(clients)
    ]
    frame = pd.DataFrame(lines, columns=columns)
    return frame.assign(participated=True, unseen=False, samples=0, total=1000, policy=policy, reading=reading)


def make_numbers(
    suite: Suite, results: pd.DataFrame, records: pd.DataFrame | None = None, papers: Mapping[str, Paper] | None = None
) -> list[Number]:
    """Every number of the tables; no gains without records, no printed values without papers."""
    if records is None:
        return summarise(suite, results, {}, {}, papers or {})
    comparisons, sweeps = compare_rows(suite, results, records), compare_draws(suite, records)
    return summarise(suite, results, comparisons, sweeps, papers or {})


def csv_of(
    suite: Suite, results: pd.DataFrame, records: pd.DataFrame | None = None, papers: Mapping[str, Paper] | None = None
) -> pd.DataFrame:
    """The same as tables.csv has them."""
    return numbers_frame(suite, make_numbers(suite, results, records, papers))


def recorded(suite: Suite, results: pd.DataFrame, records: pd.DataFrame, rounds: pd.DataFrame) -> Recorded:
    """As if these frames had been collected."""
    return Recorded(suite, tuple(suite.planned()), results, records, rounds)


def a_document(folder: Path) -> Document:
    """Every kind of table and one figure: a value that leads, a missing one, a failed one whose reason is nasty."""
    suite = every_kind()
    count = len(list(suite.planned()))
    values = [0.5 + 0.01 * place for place in range(count)]
    sweep = {f"average_samples_{v}": [0.4 + 0.01 * v] * count for v in range(1, 11)}
    results = results_frame(suite, average=values, worst_local=values, unseen_average=values, **sweep)
    results.loc[0, ["status", "reason"]] = ["failed", "a_b & 50% of <c> | #1 {x} ~ ^ \\ $y [z](u) *w* `v` µ ψ"]
    results.loc[1, "status"] = "failed"
    results.loc[2, "status"] = "missing"
    clients = {"pfedbayespt": [0.5, 0.6, 0.7, 0.4], "no-mixture": [0.55, 0.66, 0.75, 0.46]}
    records = records_frame({(2, key, seed): [level] * 2 for key, level in clients.items() for seed in suite.seeds})
    summary = summarise_suite(suite, results, records, folder)
    (folder / "figures").mkdir(parents=True, exist_ok=True)
    figure = WrittenFigure(
        "dot", "A dot & more", "A dot: 100 %.", folder / "figures/dot.png", folder / "figures/dot.pdf"
    )
    canvas = matplotlib.figure.Figure(figsize=(1, 1))
    for path in (figure.png, figure.pdf):
        canvas.savefig(path)
    return compose(suite, results, summary, [figure])


def trials(**change: Any) -> pd.DataFrame:
    """Two learning rates with two temperatures each; one trial failed."""
    columns = ("lr", "tau", "value", "state", "chosen")
    lines = [
        (0.1, 0.5, 0.6, "complete", False),
        (0.1, 1.0, 0.7, "complete", True),
        (0.3, 0.5, 0.65, "complete", False),
        (0.3, 1.0, None, "failed", False),
    ]
    place = {
        "method": "fedvpt",
        "title": "FedVPT",
        "dataset": "glyph-100",
        "partition": "classes:s=5",
        "head": "local",
        "setting": "s=5",
    }
    return pd.DataFrame(lines, columns=columns).assign(**{**place, **change})
