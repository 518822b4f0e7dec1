"""From recorded runs to tables: collect (a frame), format (cells of text), write (terminal, Markdown, CSV).

Numbers come from MLflow alone, so whoever has the tracking URI gets the same tables.
"""

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedprompt.harness.cell import Cell
from fedprompt.harness.mlflow_store import find_runs
from fedprompt.harness.runs import FAILED, run_folder, write_atomic
from fedprompt.harness.suite import Suite

METRICS = {"average": "Average", "worst_local": "Worst Local", "unseen_average": "Unseen"}
EXCLUDE = {"average": "average_exclude", "worst_local": "worst_local_exclude"}
NUMBERS = (*METRICS, *EXCLUDE.values(), "rounds_counted", "never_sampled", "floats_down", "floats_up")
GROUP = ["table", "column", "setting", "row", "title"]  # what the seeds of one number share; labels alone may repeat
USUAL_ROUNDS = 10  # the papers' last rounds
MISSING = "–"
GAP = 2  # spaces between columns in the terminal

# -- collect --------------------------------------------------------------------------------------------------------


def load_results(uri: str, cells: Sequence[Cell]) -> pd.DataFrame:
    """A row a cell, in order: what it is, `status` (finished, failed, missing), and its numbers if it is finished."""
    runs = find_runs(uri, cells)
    rows = []
    for cell in cells:
        run = runs.get(cell.hash)
        status = {"FINISHED": "finished", "FAILED": "failed"}.get(run.info.status, "missing") if run else "missing"
        metrics, tags = (run.data.metrics, run.data.tags) if run else ({}, {})
        rows.append(
            {
                "cell": cell.hash,
                "method": cell.method,
                "dataset": cell.dataset,
                "partition": cell.partition,
                "seed": cell.seed,
                "status": status,
                "reason": tags.get("failure", "") if status == "failed" else "",
                "code": cell.code,
                "commit": tags.get("git_commit", "") if status == "finished" else "",
                **{name: metrics.get(name, float("nan")) if status == "finished" else float("nan") for name in NUMBERS},
            }
        )
    return pd.DataFrame(rows)


def collect(suite: Suite, uri: str, out: Path | None = None) -> pd.DataFrame:
    """The results of a suite with the table and column each belongs to; ``out`` may tell why a cell failed."""
    planned = list(suite.planned())
    results = load_results(uri, [entry.cell for entry in planned])
    results.insert(0, "table", [setting.table for setting, _, _ in planned])
    results.insert(1, "column", [suite.settings.index(setting) for setting, _, _ in planned])
    results.insert(2, "setting", [setting.label for setting, _, _ in planned])
    results.insert(3, "kind", [setting.kind for setting, _, _ in planned])
    results.insert(4, "row", [row.key for _, row, _ in planned])
    results.insert(5, "title", [row.title for _, row, _ in planned])
    for row, (_, _, cell) in enumerate(planned):
        note = run_folder(out, cell) / FAILED if out else None
        if note and results.loc[row, "status"] != "finished" and note.exists():
            results.loc[row, ["status", "reason"]] = ["failed", json.loads(note.read_text())["reason"]]
    return results


def summarise_seeds(results: pd.DataFrame) -> pd.DataFrame:
    """A row a table, setting, method and metric: mean and sample standard deviation over seeds, in percent."""
    rows = []
    for (table, column, setting, key, title), cells in results.groupby(GROUP, sort=False):
        finished = cells[cells["status"] == "finished"]
        state = "finished" if len(finished) else "failed" if (cells["status"] == "failed").any() else "missing"
        for metric in METRICS:
            values = finished[metric].dropna() * 100
            without = finished[EXCLUDE[metric]].dropna() * 100 if metric in EXCLUDE else values
            if metric == "unseen_average" and values.empty:
                continue
            rows.append(
                {
                    "table": table,
                    "column": column,
                    "setting": setting,
                    "dataset": cells["dataset"].iloc[0],
                    "partition": cells["partition"].iloc[0],
                    "row": key,
                    "title": title,
                    "method": cells["method"].iloc[0],
                    "metric": metric,
                    "mean": values.mean(),
                    "std": values.std(ddof=1),
                    "mean_exclude": without.mean(),
                    "std_exclude": without.std(ddof=1),
                    "seeds": len(finished),
                    "seeds_expected": len(cells),
                    "status": state,
                    "rounds_counted": finished["rounds_counted"].max(),
                    "bytes_up": finished["floats_up"].mean() * 4,  # one client in one round; floats of four bytes
                    "bytes_down": finished["floats_down"].mean() * 4,
                }
            )
    return pd.DataFrame(rows)


# -- format ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """One cell of text."""

    text: str
    below: str = ""  # its second line
    value: float | None = None  # as printed, if it may be compared
    rank: int = 0  # 1 for the best of a column, 2 for the second

    @property
    def width(self) -> int:
        return max(len(self.text), len(self.below))


@dataclass(frozen=True)
class Column:
    """A setting and a metric; an entry a method."""

    setting: str
    metric: str
    entries: tuple[Entry, ...]

    @property
    def width(self) -> int:
        return max(len(self.setting), len(self.metric), *(entry.width for entry in self.entries))


@dataclass(frozen=True)
class Grid:
    """A table as text, in no particular language."""

    title: str
    methods: tuple[str, ...]  # titles of the rows
    columns: tuple[Column, ...]


def grids(suite: Suite, summary: pd.DataFrame) -> list[Grid]:
    titles = {row.key: row.title for row in suite.rows}
    made = []
    for table, rows in summary.groupby("table", sort=False):
        keys = list(rows["row"].unique())
        shown = tuple(titles[key] for key in keys)
        made.append(Grid(str(table), shown, (*_columns(rows, keys), _sent(rows, keys))))
    return made


def _columns(rows: pd.DataFrame, methods: list[str]) -> Iterator[Column]:
    for (_, setting, metric), column in rows.groupby(["column", "setting", "metric"], sort=False):
        by_method = column.set_index("row").reindex(methods)
        entries = [_entry(row) for _, row in by_method.iterrows()]
        yield Column(str(setting), METRICS[str(metric)], ranked(entries))


def _entry(row: pd.Series) -> Entry:
    if row["status"] == "failed":
        return Entry("failed")
    if row["status"] != "finished" or pd.isna(row["mean"]):
        return Entry(MISSING)
    text, without = _number(row["mean"], row["std"]), _number(row["mean_exclude"], row["std_exclude"])
    below = f"[{without}]" if without != text else ""
    if row["seeds"] < row["seeds_expected"]:
        return Entry(f"{text} ({row['seeds']:.0f}/{row['seeds_expected']:.0f})", below)
    return Entry(text, below, round(row["mean"], 2))


def _number(mean: float, std: float) -> str:
    return f"{mean:.2f}" + ("" if pd.isna(std) else f"±{std:.2f}")


def ranked(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Mark the best value and the second; equal ones share the mark."""
    order = sorted({entry.value for entry in entries if entry.value is not None}, reverse=True)[:2]
    return tuple(replace(e, rank=order.index(e.value) + 1) if e.value in order else e for e in entries)


def _sent(rows: pd.DataFrame, methods: list[str]) -> Column:
    """What one client uploads in one round; a range where the settings of a table differ."""
    low, high = (getattr(rows.groupby("row")["bytes_up"], edge)().reindex(methods) for edge in ("min", "max"))
    texts = [
        MISSING if pd.isna(b) else bytes_text(a) if a == b else f"{bytes_text(a)} to {bytes_text(b)}"
        for a, b in zip(low, high, strict=True)
    ]
    return Column("Sent", "", tuple(Entry(text) for text in texts))


def bytes_text(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def notes(suite: Suite, results: pd.DataFrame) -> list[str]:
    """What a reader must know to judge the numbers; what could mislead comes first."""
    finished, failed = (results[results["status"] == status] for status in ("finished", "failed"))
    protocols = [setting.protocol for setting in suite.settings]
    lines = []
    if suite.backbone.weights == "random":
        lines.append("RANDOM WEIGHTS: the backbone was never trained; these numbers say nothing about the methods.")
    if any(protocol.get("val_fraction") for protocol in protocols):
        lines.append("VALIDATION DATA: accuracies on held-out training data, not on test data.")
    if len(finished) < len(results):
        todo = f"complete them with: fedprompt bench {suite.name}"
        lines.append(f"{len(finished)} of {len(results)} cells are finished ({MISSING} is missing); {todo}")
    lines += [
        f"failed: {row['row']}, {row['table']}, {row['setting']}, seed {row['seed']}: {row['reason'] or 'no reason'}"
        for row in failed.to_dict("records")
    ]
    counted = sorted({int(rounds) for rounds in finished["rounds_counted"].dropna()})
    over = " or ".join(map(str, counted)) or "no"
    seeds = ", ".join(map(str, suite.seeds))
    spread = f"mean ± sample standard deviation over seeds {seeds}" if len(suite.seeds) > 1 else f"seed {seeds} only"
    lines.append(
        "Accuracy in percent. Average: mean over clients; Worst Local: the worst client of each round; both then mean "
        f"over the last {over} rounds{_fewer(counted)}; {spread}. Best bold, second underlined."
    )
    if any((finished[metric] != finished[other]).any() for metric, other in EXCLUDE.items()):
        lines.append("[ ]: the value without clients that never took part (never_sampled = exclude).")
    share = results.assign(done=results["status"] == "finished").groupby(GROUP)["done"].mean()
    if share.between(0, 1, inclusive="neither").any():
        lines.append("(k/n): only k of n seeds are finished; such a mean is not ranked.")
    lines.append("Sent: what one client uploads in one round, floats of 4 bytes.")
    spec = suite.backbone
    code = ", ".join(sorted(set(results["code"])))
    commits = sorted({str(commit)[:12] + str(commit)[40:] for commit in finished["commit"] if commit})
    lines.append(f"Backbone {spec.name}, {spec.image_size} px, weights {spec.weights}.")
    lines.append(f"Code fedprompt-bench {', commit '.join([code, *commits])}.")
    return lines


def _fewer(counted: Sequence[int]) -> str:
    return f" (fewer than the papers' {USUAL_ROUNDS})" if any(rounds < USUAL_ROUNDS for rounds in counted) else ""


# -- write ----------------------------------------------------------------------------------------------------------


def write_report(suite: Suite, uri: str, out: Path, console: Console) -> Path:
    """Print the tables of ``suite``, write `<out>/report/<suite>/{report.md,tables.csv}`; returns the Markdown file."""
    results = collect(suite, uri, out)
    summary = summarise_seeds(results)
    tables, footnotes = grids(suite, summary), notes(suite, results)
    folder = out / "report" / suite.name
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "report.md", markdown(suite.title, tables, footnotes).encode())
    long = summary.assign(suite=suite.name)
    first = ["suite", "table", "setting", "row", "title", "method", "metric"]
    ordered = long[[*first, *(name for name in long if name not in (*first, "column"))]]
    write_atomic(folder / "tables.csv", ordered.to_csv(index=False, lineterminator="\n").encode())
    show(tables, footnotes, console)
    return folder / "report.md"


def show(tables: Sequence[Grid], footnotes: Sequence[str], console: Console) -> None:
    """Print with rich; a table wider than the terminal is continued below itself."""
    for grid in tables:
        for part, columns in enumerate(_parts(grid, console.width)):
            title = grid.title + (" (continued)" if part else "")
            table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0))
            table.add_column("Method", no_wrap=True)
            for column in columns:
                header = Text(f"{column.setting}\n{column.metric}", justify="right")
                table.add_column(header, justify="right", no_wrap=True)
            for row, method in enumerate(grid.methods):
                table.add_row(Text(method), *(_styled(column.entries[row]) for column in columns))
            console.print(table)
    for line in footnotes:
        console.print(Text(line, style="bold red" if line.startswith(("RANDOM", "VALIDATION", "failed")) else "dim"))


def _parts(grid: Grid, width: int) -> list[list[Column]]:
    """Columns in as few even parts as fit beside the methods' titles; a setting's columns stay together."""
    settings = [list(group) for _, group in itertools.groupby(grid.columns, lambda column: column.setting)]
    parts: list[list[Column]] = []
    for count in range(1, len(settings) + 1):
        size = math.ceil(len(settings) / count)
        starts = range(0, len(settings), size)
        parts = [list(itertools.chain(*settings[start : start + size])) for start in starts]
        widest = max(sum(column.width + GAP for column in part) for part in parts)
        if 1 + max(len("Method"), *map(len, grid.methods)) + GAP + widest <= width:  # 1 for the left edge
            break
    return parts


def _styled(entry: Entry) -> Text:
    text = Text(entry.text, style={1: "bold", 2: "underline"}.get(entry.rank, ""))
    return text.append(f"\n{entry.below}", style="not bold not underline") if entry.below else text


def markdown(title: str, tables: Sequence[Grid], footnotes: Sequence[str]) -> str:
    """GitHub's Markdown; underlined is `<ins>`, which GitHub keeps."""
    blocks = [f"# {title}"]
    for grid in tables:
        header = ["Method", *(f"{c.setting}<br>{c.metric}".removesuffix("<br>") for c in grid.columns)]
        rows = [
            [method, *(_marked(column.entries[row]) for column in grid.columns)]
            for row, method in enumerate(grid.methods)
        ]
        lines = [header, ["---", *["---:"] * len(grid.columns)], *rows]
        blocks += [f"## {grid.title}", "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)]
    return "\n\n".join([*blocks, "\n".join(f"- {_escaped(line)}" for line in footnotes)]) + "\n"


def _marked(entry: Entry) -> str:
    before, after = {1: ("**", "**"), 2: ("<ins>", "</ins>")}.get(entry.rank, ("", ""))
    return f"{before}{entry.text}{after}" + (f"<br>{entry.below}" if entry.below else "")


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
