"""The tables of results: heterogeneity, unseen clients, V-sweep. (The ablation's is in `ablation`.)"""

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from fedprompt.harness.core.text import bytes_text
from fedprompt.harness.report.collect import METRICS
from fedprompt.harness.report.document import FAILED, MISSING, Column, Entry, Grid, ranked


def tables_of(summary: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Heading, kind and numbers of each table, in the suite's order; settings of one heading and kind share a table."""
    return [(str(table), str(kind), part) for (table, kind), part in summary.groupby(["table", "kind"], sort=False)]


def heterogeneity(title: str, part: pd.DataFrame) -> Grid:
    """Average and Worst Local of each setting, then what a client sends."""
    return _by_setting(title, part, sent=True)


def unseen(title: str, part: pd.DataFrame) -> Grid:
    return _by_setting(title, part, sent=False)


def vsweep(title: str, part: pd.DataFrame) -> Grid:
    """One column per V, one row per method and setting."""
    lines = part.drop_duplicates(["column", "row"])[["column", "setting", "row", "title"]]
    several = lines["column"].nunique() > 1
    names = [f"{line.title}, {line.setting}" if several else str(line.title) for line in lines.itertuples()]
    keys = list(lines[["column", "row"]].itertuples(index=False, name=None))
    columns = [
        Column("", METRICS[str(metric)], _entries(numbers.set_index(["column", "row"]), keys))
        for metric, numbers in part.groupby("metric", sort=False)
    ]
    return Grid(slug(title), title, tuple(names), tuple(columns))


def _by_setting(title: str, part: pd.DataFrame, sent: bool) -> Grid:
    titles = row_titles(part)
    columns = [
        Column(str(setting), METRICS[str(metric)], ranked(_entries(numbers.set_index("row"), list(titles))))
        for (_, setting, metric), numbers in part.groupby(["column", "setting", "metric"], sort=False)
    ]
    if sent:
        columns.append(_sent(part, list(titles)))
    return Grid(slug(title), title, tuple(titles.values()), tuple(columns))


def row_titles(part: pd.DataFrame) -> dict[str, str]:
    return dict(part.drop_duplicates("row")[["row", "title"]].itertuples(index=False, name=None))


def _entries(numbers: pd.DataFrame, keys: Sequence[Any]) -> tuple[Entry, ...]:
    """One entry per key of the frame's index; a row that a setting does not have is empty."""
    return tuple(result_entry(numbers.loc[key]) if key in numbers.index else Entry("") for key in keys)


def result_entry(number: pd.Series) -> Entry:
    """Mean and deviation of one number, or why there is none."""
    if number["status"] == "failed":
        return Entry(FAILED)
    if number["status"] != "finished" or pd.isna(number["mean"]):
        return Entry(MISSING)
    text = mean_and_spread(number["mean"], number["std"])
    without = mean_and_spread(number["mean_exclude"], number["std_exclude"])
    below = "" if without == text or pd.isna(number["mean_exclude"]) else f"[{without}]"
    if number["seeds"] < number["seeds_expected"]:
        return Entry(f"{text} ({number['seeds']:.0f}/{number['seeds_expected']:.0f})", below)
    return Entry(text, below, round(number["mean"], 2))


def mean_and_spread(mean: float, std: float) -> str:
    return f"{mean:.2f}" + ("" if pd.isna(std) else f"±{std:.2f}")


def signed(difference: float) -> str:
    """With its sign, even where it rounds to zero."""
    return f"{difference:+.2f}".replace("-", "−")


def _sent(part: pd.DataFrame, keys: Sequence[str]) -> Column:
    """What one client uploads in one round; a range where the settings of a table differ."""
    low, high = (getattr(part.groupby("row")["bytes_up"], edge)().reindex(keys) for edge in ("min", "max"))
    texts = [
        MISSING if pd.isna(b) else bytes_text(a) if a == b else f"{bytes_text(a)} to {bytes_text(b)}"
        for a, b in zip(low, high, strict=True)
    ]
    return Column("Sent", "", tuple(Entry(text) for text in texts))


def slug(title: str) -> str:
    """A file name from the part of a heading before the first bracket."""
    return re.sub(r"[^a-z0-9]+", "-", title.partition("(")[0].lower()).strip("-") or "table"


def unique(names: Iterable[str]) -> list[str]:
    """The names in order; repeated ones get a number."""
    numbered: list[str] = []
    for name in names:
        candidates = (f"{name}-{count}" if count > 1 else name for count in itertools.count(1))
        numbered.append(next(candidate for candidate in candidates if candidate not in numbered))
    return numbered
