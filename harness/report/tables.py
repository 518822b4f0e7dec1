"""The tables of results: by setting and head policy with gains, ablations, V-sweeps."""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isinf, isnan

from fedprompt.core.text import bytes_text
from fedprompt.harness.federation.policy import POLICY_NAMES
from fedprompt.harness.measuring.convergence import ERRORS, THRESHOLD
from fedprompt.harness.measuring.measures import Measure
from fedprompt.harness.report.collect import METRICS, OF_KIND, POLICY_HEADINGS
from fedprompt.harness.report.comparisons import COMPARED, NO_PROMPT
from fedprompt.harness.report.document import DIVERGED, FAILED, MISSING, UNTUNED, Column, Entry, Grid, Note
from fedprompt.harness.report.inference import PERCENTILES
from fedprompt.harness.report.numbers import Key, Number, grouped, metrics_of
from fedprompt.harness.report.values import ACCURACY
from fedprompt.harness.running.suite import Suite

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
    "Difference{unit}, paired by seed and client, with its 95 % interval over further clients and seeds. All V "
    "are nested draws of one training."
)
DECILES = "10 %, 50 %, 90 %: {} that this share of the clients of all seeds stays below; mean over reported rounds."
DIFFERENCE = "Difference: {}{unit}, seed by seed; mean ± sample standard deviation."
ABLATION_INTERVAL = Note(
    "", "95 % CI: of the paired difference (same seed, same client), over further clients and seeds like these."
)
ACROSS = {
    "mean": "Mean over clients",
    "worst": "The worst client of each round",
    "pooled": "All clients' images pooled; intervals by the jackknife over clients",
}
Part = Sequence[Number]


def tables_of(numbers: Part) -> dict[tuple[str, str], list[Number]]:
    """Numbers by heading and kind of their table, in the suite's order; settings that share both share a table."""
    return grouped(numbers, lambda n: (_of_measure(n.measure, n.table), n.kind))


def _of_measure(measure: Measure, title: str) -> str:
    """A table's title; that of accuracies does not name them."""
    return title if measure.name == ACCURACY else f"{measure.title}: {title}"


def _heading(metric: str, measure: Measure) -> str:
    """Of a column."""
    if measure.name == ACCURACY:
        return METRICS[metric]
    return METRICS[metric].replace("Average", measure.name + f" ({measure.unit})" * bool(measure.unit))


def measure_notes(part: Part) -> Iterator[Note]:
    """What the numbers of a table are, where they are not accuracies."""
    measure = part[0].measure
    if measure.name == ACCURACY:
        return
    better = "Higher" if measure.higher_is_better else "Lower"
    yield Note("", f"{measure.title}: {measure.says} {better} is better. {ACROSS[measure.across]}.")
    if not measure.higher_is_better and measure.across != "worst":
        yield Note("", f"Differences are improvements: positive where {measure.name} is lower.")
    if any(isinf(number.mean) for number in part):
        yield Note("", "inf: a method that excludes an image's true class; its differences are left out.")
    if any(number.status == "missing" for number in part):
        yield Note("", f"{MISSING}: there is no run, or it has no scores of such images.")


def in_unit(measure: Measure) -> str:
    """The unit of differences, to follow a word."""
    return f" in{measure.gain_unit}" if measure.gain_unit else ""


def results(title: str, part: Part) -> Iterator[tuple[Part, tuple[Grid, ...]]]:
    """Numbers and their tables: the means with their gains, then how accuracies are spread over clients.

    With one head policy settings stand side by side; with several each setting has its own tables, by policy.
    """
    columns = grouped(part, lambda n: n.column).values()
    if len({number.policy for number in part}) == 1:
        yield part, tuple(_pair(title, part, [(numbers[0].setting, numbers) for numbers in columns]))
        return
    for numbers in columns:
        policies = grouped(numbers, lambda n: POLICY_HEADINGS[n.policy])
        yield numbers, tuple(_pair(f"{title}: {numbers[0].setting}", numbers, list(policies.items())))


def _pair(title: str, part: Part, groups: Sequence[tuple[str, Part]]) -> Iterator[Grid]:
    """``groups`` are the numbers of the columns below one heading."""
    titles = row_titles(part)
    kind, by_policy = part[0].kind, len({number.policy for number in part}) > 1
    main = COMPARED[kind]
    measure = part[0].measure
    metrics = [metric for metric in metrics_of(kind, measure.name) if metric == main or not by_policy]
    columns = [column for heading, numbers in groups for column in _means(heading, numbers, titles, metrics)]
    if kind == "heterogeneity" and measure.name == ACCURACY:
        columns.append(_sent(part, titles))
    meaning = "Differs from the control at 5 %, adjusted for all comparisons below one heading."
    uncompared = _uncompared([n for n in part if n.metric == main])
    notes = (*measure_notes(part), *_marked(columns, meaning), *uncompared, *mark_notes(columns))
    rows = tuple(titles.values())
    yield Grid(slug(title), title, rows, tuple(columns), notes=notes)
    others = [metric for metric in metrics_of(kind, measure.name) if metric not in metrics]
    spread = [column for heading, numbers in groups for column in _spread(heading, numbers, titles, main, others)]
    if spread:
        deciles = Note("", DECILES.format(measure.title if measure.name != ACCURACY else "accuracy"))
        yield Grid(f"{slug(title)}-clients", f"{title}, over clients", rows, tuple(spread), notes=(deciles,))


def _means(heading: str, numbers: Part, rows: Iterable[str], metrics: Sequence[str]) -> Iterator[Column]:
    for metric in metrics:
        lines = {number.row: number for number in numbers if number.metric == metric}
        yield Column(heading, _heading(metric, numbers[0].measure), _entries(lines, rows))
        if any(number.control for number in lines.values()):
            yield Column(heading, "Gain", tuple(_gain(lines[row]) if row in lines else Entry("") for row in rows))


def _gain(number: Number) -> Entry:
    if number.control:
        return Entry("control")
    gain = number.gain
    if gain is None:
        return _absent(number)
    digits = number.measure.decimals[1]
    text = f"{gain.points:+.{digits}f} [{gain.low:.{digits}f}, {gain.high:.{digits}f}]".replace("-", "−")
    return Entry(text, marks=DIFFERENT if gain.significant else "")


def _uncompared(numbers: Part) -> Iterator[Note]:
    """Why finished rows have no gain where others have one; ``numbers`` are those of the compared metric."""
    heads, too_few = [], False
    for lines in grouped(numbers, lambda n: (n.column, n.policy)).values():
        controls = [number for number in lines if number.control]
        if not controls:  # no gains are shown
            continue
        readings = {number.reading for number in controls}
        by_head = all(number.method == NO_PROMPT for number in controls)  # else the suite names a control for all heads
        for number in lines:
            if not number.control and number.gain is None and number.status == "finished":
                if by_head and number.reading not in readings:
                    heads.append(POLICY_NAMES[number.reading])
                else:
                    too_few = True
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
    """What the signs next to accuracies mean, where there are any."""
    marks = "".join(entry.marks for column in columns for entry in column.entries)
    used = "".join(arrow for arrow in (RISING, FALLING) if arrow in marks)
    if used:
        yield Note(used, MOVING)
    if UNTUNED in marks:
        yield Note(UNTUNED, "Rates that were not tuned, while other rows have tuned ones.")


def _spread(heading: str, numbers: Part, rows: Iterable[str], main: str, others: Sequence[str]) -> Iterator[Column]:
    """Metrics that the table of means leaves out, then deciles; no columns where there are no records."""
    for metric in others:
        lines = {number.row: number for number in numbers if number.metric == metric}
        yield Column(heading, _heading(metric, numbers[0].measure), _entries(lines, rows))
    lines = {number.row: number for number in numbers if number.metric == main}
    digits = numbers[0].measure.decimals[1]
    if any(number.deciles for number in lines.values()):
        for place, percent in enumerate(PERCENTILES):
            shares = {
                row: Entry(f"{number.deciles[place]:.{digits}f}") if number.deciles else _absent(number)
                for row, number in lines.items()
            }
            yield Column(heading, f"{percent} %", tuple(shares.get(row, Entry("")) for row in rows))


def vsweep(title: str, part: Part) -> Grid:
    """One column per V and one for what the most of them gain over one; one row per method, setting and policy."""
    settings, policies = (len(set(values)) > 1 for values in zip(*((n.column, n.policy) for n in part), strict=True))
    names = {
        n.entry: ", ".join([n.title, *[n.setting] * settings, *[POLICY_HEADINGS[n.policy].lower()] * policies])
        for n in part
    }
    by_metric = {metric: {n.entry: n for n in numbers} for metric, numbers in grouped(part, lambda n: n.metric).items()}
    columns = [Column("", METRICS[metric], _entries(numbers, names)) for metric, numbers in by_metric.items()]
    notes = [*measure_notes(part), *mark_notes(columns)]
    measure = part[0].measure
    most = list(by_metric)[-1]
    if any(number.gain for number in by_metric[most].values()):
        gains = tuple(_gain(by_metric[most][entry]) for entry in names)
        minuend, subtrahend = (METRICS[most], "V=1")[:: 1 if measure.higher_is_better else -1]
        columns.append(Column("", f"{minuend} − {subtrahend}", gains))
        explained = Note("", SWEEP_NOTE.format(unit=in_unit(measure)))
        meaning = "Differs from V = 1 at 5 %, adjusted for the number of V."
        notes += [explained, *_marked(columns, meaning)]
    return Grid(slug(title), title, tuple(names.values()), tuple(columns), notes=tuple(notes))


def ablation(suite: Suite, title: str, part: Part) -> Grid:
    """Average, then the paired difference from one row: its mean and spread over seeds, each seed, its interval."""
    titles, measure = row_titles(part), part[0].measure
    several = len({number.policy for number in part}) > 1
    columns: list[Column] = []
    for (column, policy), numbers in grouped(part, lambda n: (n.column, n.policy)).items():
        setting = suite.settings[column]
        label = f"{setting.label}, {POLICY_HEADINGS[policy].lower()}" if several else setting.label
        lines = {number.row: number for number in numbers}
        columns.append(Column(label, _heading("average", measure), _entries(lines, titles)))
        if setting.reference:
            texts = [_difference(lines.get(row), setting.reference, len(suite.seeds)) for row in titles]
            heads = ("Difference", "Each seed", "95 % CI", "Clients")
            columns += [
                Column(label, head, tuple(map(Entry, column)))
                for head, column in zip(heads, zip(*texts, strict=True), strict=True)
            ]
    name = METRICS["average"] if measure.name == ACCURACY else measure.name
    taken = f"{name} minus the reference's" if measure.higher_is_better else f"the reference's {name} minus the row's"
    unit = f",{in_unit(measure)}" if in_unit(measure) else ""
    explained = (Note("", DIFFERENCE.format(taken, unit=unit)), ABLATION_INTERVAL)
    has_reference = any(suite.settings[number.column].reference for number in part)
    notes = (*measure_notes(part), *(explained if has_reference else ()), *mark_notes(columns))
    return Grid(slug(title), title, tuple(titles.values()), tuple(columns), corner="Variant", notes=notes)


def _difference(number: Number | None, reference: str, seeds: int) -> tuple[str, str, str, str]:
    """The difference from the reference as text, of each seed, its interval, and how many clients that rests on."""
    if number is None:
        return "", "", "", ""
    if number.row == reference:
        return "reference", "", "", ""
    pair = number.paired
    if pair is None or not pair.by_seed:
        return MISSING, MISSING, MISSING, MISSING
    known, over_clients, digits = len(pair.by_seed), pair.over_clients, number.measure.decimals[0]
    spread = "" if known < 2 else f"±{pair.std:.{digits}f}"
    spread += "" if known == seeds else f" ({known}/{seeds})"
    interval = MISSING
    if over_clients and not isnan(over_clients.low):
        interval = f"{signed(over_clients.low, digits)} to {signed(over_clients.high, digits)}"
    clients = over_clients.clients if over_clients else 0
    each_seed = ", ".join(signed(difference, digits) for difference in pair.by_seed.values())
    return signed(pair.mean, digits) + spread, each_seed, interval, str(clients)


def row_titles(part: Part) -> dict[str, str]:
    """Titles of the rows by key, in the table's order."""
    return {number.row: number.title for number in part}


def _entries(lines: Mapping[Key, Number], rows: Iterable[Key]) -> tuple[Entry, ...]:
    """One entry per row; one that a setting does not have is empty."""
    return tuple(result_entry(lines[row]) if row in lines else Entry("") for row in rows)


def result_entry(number: Number) -> Entry:
    """Mean and deviation of one number, or why there is none."""
    if number.status != "finished" or isnan(number.mean):
        impossible = number.status == "finished" and number.metric in ("novel_average", "harmonic_mean")
        return Entry(NOT_APPLICABLE) if impossible else _absent(number)
    digits = number.measure.decimals[0]
    text = mean_and_spread(number.mean, number.std, digits)
    without = mean_and_spread(number.mean_exclude, number.std_exclude, digits)
    below = "" if without == text or isnan(number.mean_exclude) else f"[{without}]"
    is_moving = number.moving >= MOVING_SHARE and number.metric not in UNMARKED
    marks = "" if not is_moving else RISING if number.drift > 0 else FALLING
    marks += UNTUNED if number.untuned else ""
    if number.seeds < number.seeds_expected:
        return Entry(f"{text} ({number.seeds}/{number.seeds_expected})", below, marks=marks)
    return Entry(text, below, bold=number.leads, marks=marks)


def _absent(number: Number) -> Entry:
    """In place of a number that is not there: what became of its cells."""
    return Entry(number.status if number.status in (FAILED, DIVERGED) else MISSING)


def mean_and_spread(mean: float, std: float, digits: int = 2) -> str:
    """`61.23±0.50`, or the mean alone where there is one seed."""
    return f"{mean:.{digits}f}" + ("" if isnan(std) else f"±{std:.{digits}f}")


def signed(difference: float, digits: int = 2) -> str:
    """With its sign, even where it rounds to zero."""
    return f"{difference:+.{digits}f}".replace("-", "−")


def _sent(part: Part, rows: Iterable[str]) -> Column:
    """What one client uploads in one round; a range where the settings of a table differ."""
    sent = {
        row: [n.bytes_up for n in numbers if not isnan(n.bytes_up)]
        for row, numbers in grouped(part, lambda n: n.row).items()
    }
    edges = [(min(sent[row]), max(sent[row])) if sent[row] else () for row in rows]
    texts = [" to ".join(map(bytes_text, dict.fromkeys(edge))) or MISSING for edge in edges]
    return Column("Sent", "", tuple(map(Entry, texts)))


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
