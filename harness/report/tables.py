"""The tables of results: heterogeneity, unseen clients, V-sweep. (The ablation's is in `ablation`.)"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from fedprompt.core.text import bytes_text
from fedprompt.harness.federation.policy import POLICY_NAMES
from fedprompt.harness.measuring.convergence import ERRORS, THRESHOLD
from fedprompt.harness.report.collect import METRICS, OF_KIND, POLICY_HEADINGS
from fedprompt.harness.report.comparisons import COMPARED, DECILES, NO_PROMPT
from fedprompt.harness.report.document import DIVERGED, FAILED, MISSING, UNTUNED, Column, Entry, Grid, Note
from fedprompt.harness.report.inference import LEVEL

BLANK = Entry("")
DIFFERENT = "†"
NOT_APPLICABLE = "n/a"
RISING, FALLING = "↑", "↓"
MOVING_SHARE = 0.5  # of the seeds
UNMARKED = ("worst_local", *OF_KIND["novel"][1:], "target_average")  # the rule of moving is about Average
MOVING = (
    "Still moving at the end of training in at least half of its seeds: over the last third of the rounds, Average "
    f"changes by more than {100 * THRESHOLD:g} point and more than {ERRORS:g} of its standard errors from the earlier "
    "half to the later one."
)
SWEEP_NOTE = (
    "Difference in points, paired by seed and client, with its 95 % interval over further clients and seeds. All V "
    "are nested draws of one training."
)
DECILE_NOTE = Note(
    "", "10 %, 50 %, 90 %: accuracy that this share of the clients of all seeds stays below; mean over reported rounds."
)


def tables_of(summary: pd.DataFrame) -> list[tuple[str, str, pd.DataFrame]]:
    """Heading, kind and numbers of each table, in the suite's order; settings of one heading and kind share a table."""
    return [(str(table), str(kind), part) for (table, kind), part in summary.groupby(["table", "kind"], sort=False)]


def results(title: str, part: pd.DataFrame) -> Iterator[tuple[pd.DataFrame, tuple[Grid, ...]]]:
    """Numbers and their tables: the means with their gains, then how accuracies are spread over clients.

    With one head policy settings stand side by side; with several each setting has its own tables, by policy.
    """
    if part["policy"].nunique() == 1:
        groups = [
            ColumnGroup(str(label), numbers) for (_, label), numbers in part.groupby(["column", "setting"], sort=False)
        ]
        yield part, tuple(_pair(title, part, groups))
        return
    for (_, label), numbers in part.groupby(["column", "setting"], sort=False):
        policies = numbers.groupby("policy", sort=False)
        groups = [ColumnGroup(POLICY_HEADINGS[str(policy)], lines) for policy, lines in policies]
        yield numbers, tuple(_pair(f"{title}: {label}", numbers, groups))


class ColumnGroup(NamedTuple):
    """Columns that stand below one heading."""

    heading: str
    numbers: pd.DataFrame


def _pair(title: str, part: pd.DataFrame, groups: Sequence[ColumnGroup]) -> Iterator[Grid]:
    titles = row_titles(part)
    kind, by_policy = str(part["kind"].iloc[0]), part["policy"].nunique() > 1
    main = COMPARED[kind]
    metrics = [metric for metric in OF_KIND[kind] if metric == main or not by_policy]
    columns = [column for group in groups for column in _means(group, list(titles), metrics)]
    if kind == "heterogeneity":
        columns.append(_sent(part, list(titles)))
    meaning = "Differs from the control at 5 %, adjusted for all comparisons below one heading."
    notes = (*_marked(columns, meaning), *_uncompared(part[part["metric"] == main]), *mark_notes(columns))
    rows = tuple(titles.values())
    yield Grid(slug(title), title, rows, tuple(columns), notes=notes)
    others = [metric for metric in OF_KIND[kind] if metric not in metrics]
    spread = [column for group in groups for column in _spread(group, list(titles), main, others)]
    if spread:
        yield Grid(f"{slug(title)}-clients", f"{title}, over clients", rows, tuple(spread), notes=(DECILE_NOTE,))


def _means(group: ColumnGroup, keys: Sequence[str], metrics: Sequence[str]) -> Iterator[Column]:
    for metric in metrics:
        lines = group.numbers[group.numbers["metric"] == metric].set_index("row")
        yield Column(group.heading, METRICS[metric], _entries(lines, keys))
        if lines["control"].any():
            gains = {str(key): _gain(number) for key, number in lines.iterrows()}
            yield Column(group.heading, "Gain", tuple(gains.get(key, BLANK) for key in keys))


def _gain(number: "pd.Series[Any]") -> Entry:
    if number["control"]:
        return Entry("control")
    if pd.isna(number["gain"]):
        return _absent(number)
    low, high = (f"{edge:.1f}".replace("-", "−") for edge in (number["gain_low"], number["gain_high"]))
    text = f"{number['gain']:+.1f}".replace("-", "−")
    return Entry(f"{text} [{low}, {high}]", marks=DIFFERENT if number["gain_p_adjusted"] < LEVEL else "")


def _uncompared(numbers: pd.DataFrame) -> Iterator[Note]:
    """Why finished rows have no gain where others have one; ``numbers`` are those of the compared metric."""
    heads, too_few = [], False
    for _, lines in numbers.groupby(["column", "policy"], sort=False):
        is_control = lines["control"].astype(bool)
        controls = lines[is_control]
        if controls.empty:  # no gains are shown
            continue
        without = lines.loc[~is_control & lines["gain"].isna() & (lines["status"] == "finished"), "reading"]
        by_head = (controls["method"] == NO_PROMPT).all()  # a control that the suite names serves rows with any head
        has_control = without.isin(controls["reading"]) | (not by_head)
        heads += [POLICY_NAMES[reading] for reading in without[~has_control]]
        too_few |= bool(has_control.any())
    if heads:
        names = " or a ".join(dict.fromkeys(heads))
        yield Note("", f"No gain ({MISSING}): the table has no finished row of no prompt with a {names}, the control.")
    if too_few:
        yield Note("", f"No gain ({MISSING}): fewer than two clients can be compared with the control.")


def _marked(columns: Sequence[Column], meaning: str) -> Iterator[Note]:
    """What the mark of a difference means, where there is one."""
    if any(DIFFERENT in entry.marks for column in columns for entry in column.entries):
        yield Note(DIFFERENT, meaning)


def mark_notes(columns: Sequence[Column]) -> Iterator[Note]:
    """What the signs beside accuracies mean, where there are any."""
    marks = "".join(entry.marks for column in columns for entry in column.entries)
    used = "".join(arrow for arrow in (RISING, FALLING) if arrow in marks)
    if used:
        yield Note(used, MOVING)
    if UNTUNED in marks:
        yield Note(UNTUNED, "Rates that were not tuned, while other rows have tuned ones.")


def _spread(group: ColumnGroup, keys: Sequence[str], main: str, others: Sequence[str]) -> Iterator[Column]:
    """Metrics that the table of means leaves out, then deciles; no columns where there are no records."""
    lines = group.numbers[group.numbers["metric"] == main].set_index("row")
    for metric in others:
        yield Column(
            group.heading,
            METRICS[metric],
            _entries(group.numbers[group.numbers["metric"] == metric].set_index("row"), keys),
        )
    if lines[DECILES].notna().any(axis=None):
        for decile in DECILES:
            shares = {
                str(key): _absent(number) if pd.isna(number[decile]) else Entry(f"{number[decile]:.1f}")
                for key, number in lines.iterrows()
            }
            yield Column(group.heading, f"{decile[1:]} %", tuple(shares.get(key, BLANK) for key in keys))


def vsweep(title: str, part: pd.DataFrame) -> Grid:
    """One column per V and one for what the most of them gain over one; one row per method, setting and policy."""
    place = ["column", "policy", "row"]
    lines = part.drop_duplicates(place)[[*place, "setting", "title"]]
    settings, policies = (lines[name].nunique() > 1 for name in ("column", "policy"))
    names = [
        ", ".join([line["title"], *[line["setting"]] * settings, *[POLICY_HEADINGS[line["policy"]].lower()] * policies])
        for line in lines.to_dict("records")
    ]
    keys = list(lines[place].itertuples(index=False, name=None))
    columns = [
        Column("", METRICS[str(metric)], _entries(numbers.set_index(place), keys))
        for metric, numbers in part.groupby("metric", sort=False)
    ]
    notes = [*mark_notes(columns)]
    most = part["metric"].iloc[-1]
    gains = part[part["metric"] == most].set_index(place)
    if gains["gain"].notna().any():
        columns.append(Column("", f"{METRICS[most]} − V=1", tuple(_gain(gains.loc[key]) for key in keys)))
        notes += [Note("", SWEEP_NOTE), *_marked(columns, "Differs from V = 1 at 5 %, adjusted for the number of V.")]
    return Grid(slug(title), title, tuple(names), tuple(columns), notes=tuple(notes))


def row_titles(part: pd.DataFrame) -> dict[str, str]:
    return dict(part.drop_duplicates("row")[["row", "title"]].itertuples(index=False, name=None))


def _entries(numbers: pd.DataFrame, keys: Sequence[Any]) -> tuple[Entry, ...]:
    """One entry per key of the frame's index; a row that a setting does not have is empty."""
    return tuple(result_entry(numbers.loc[key]) if key in numbers.index else Entry("") for key in keys)


def result_entry(number: pd.Series) -> Entry:
    """Mean and deviation of one number, or why there is none."""
    if number["status"] != "finished" or pd.isna(number["mean"]):
        impossible = number["status"] == "finished" and number["metric"] in ("novel_average", "harmonic_mean")
        return Entry(NOT_APPLICABLE) if impossible else _absent(number)
    text = mean_and_spread(number["mean"], number["std"])
    without = mean_and_spread(number["mean_exclude"], number["std_exclude"])
    below = "" if without == text or pd.isna(number["mean_exclude"]) else f"[{without}]"
    is_moving = number["moving"] >= MOVING_SHARE and number["metric"] not in UNMARKED
    marks = "" if not is_moving else RISING if number["drift"] > 0 else FALLING
    marks += UNTUNED if number["untuned"] else ""
    if number["seeds"] < number["seeds_expected"]:
        return Entry(f"{text} ({number['seeds']:.0f}/{number['seeds_expected']:.0f})", below, marks=marks)
    return Entry(text, below, bold=bool(number["leads"]), marks=marks)


def _absent(number: "pd.Series[Any]") -> Entry:
    """In place of a number that is not there: what became of its cells."""
    return Entry(str(number["status"]) if number["status"] in (FAILED, DIVERGED) else MISSING)


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
