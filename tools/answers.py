"""What a published run answers, in sentences: do runs collapse, do a head's rate and pFedBayesPT's parts matter, do
prompts gain over no prompt, is our order of methods the paper's.

docs/results.md holds its text; a test compares it with the published files.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from fedprompt.datasets import parse_partition
from fedprompt.harness.federation.policy import POLICY_NAMES
from fedprompt.harness.report.comparisons import COMPARED
from fedprompt.harness.report.inference import LEVEL, Difference, holm, paired
from fedprompt.harness.report.notes import with_collapse
from fedprompt.harness.report.papers import Paper, load_papers
from fedprompt.harness.report.reference import recorded_in
from fedprompt.harness.report.values import client_values
from fedprompt.methods import registry

FULL = "pfedbayespt"
PARTS = {  # question, the row with the part, the row without
    "Does the rate of a head matter (no prompt at 0.001 against its tuned rate)?": ("no-prompt-gentle", "head-tune"),
    "Does the mixture term matter (S = 1 against S = 0)?": (FULL, "full-without-mixture"),
    "Do masks matter (five draws against none, both without noise)?": ("d-with-masks", "pfedbayespt-d"),
}
DRAWS = "Does the number of draws V (10 against 1)?"
PRINTED_FOR = {"domains": "DomainNet", "classes": "CIFAR-100"}  # the paper's data set with the same kind of shift
RESAMPLED = 2000
Array = npt.NDArray[np.float64]
ENTRY = ["kind", "setting", "policy"]  # of a column; with `row` of a number


def answers(folder: Path) -> str:
    """Markdown from the files of a published run."""
    numbers, runs = pd.read_csv(folder / "tables.csv"), pd.read_csv(folder / "cells.csv")
    return sentences(numbers, runs, client_accuracies(folder), load_papers(Path()).get("vit"))


def sentences(numbers: pd.DataFrame, runs: pd.DataFrame, accuracies: pd.DataFrame, paper: Paper | None) -> str:
    """Markdown from tables.csv, cells.csv, the clients' accuracies and the paper whose order is compared."""
    blocks = [_incomplete(numbers), collapses(runs), *_parts(accuracies), *_prompts(numbers)]
    blocks += _orders(accuracies, numbers, paper)
    return "\n\n".join(filter(None, blocks)) + "\n"


def client_accuracies(folder: Path) -> pd.DataFrame:
    """One line per finished entry of the tables, number of draws and client: its mean over the reported rounds."""
    recorded = recorded_in(folder)
    settings, records = recorded.suite.settings, recorded.records
    values = [client_values(settings, records).assign(samples=0), client_values(settings, records, swept=True)]
    titles = recorded.results[["column", "policy", "row", "seed", *ENTRY[:2], "title", "method"]]
    return titles.merge(pd.concat(values), on=["column", "policy", "row", "seed"]).rename(columns={"value": "accuracy"})


def _incomplete(numbers: pd.DataFrame) -> str:
    missing = int((numbers["seeds_expected"] - numbers["seeds"] > 0).sum())
    return f"**Incomplete:** {missing} of {len(numbers)} numbers lack seeds." if missing else ""


def collapses(cells: pd.DataFrame) -> str:
    """How many runs of cells.csv ended far below no prompt, by setting."""
    runs = with_collapse(cells[cells["status"] == "finished"])
    low = runs[runs["collapsed"]].drop_duplicates("cell")
    places = low["setting"] + low["kind"].map(lambda kind: ", unseen clients" * (kind == "unseen"))
    counts = "; ".join(f"{count} at {place}" for place, count in places.value_counts(sort=False).items())
    return (
        "**Do runs collapse (end below half of no prompt's accuracy with the same head, data and seed)?** "
        f"{len(low) or 'None'} of {runs['cell'].nunique()}{f': {counts}' * bool(counts)}."
    )


# -- rows of an ablation -----------------------------------------------------------------------------------------------


def _parts(accuracies: pd.DataFrame) -> Iterator[str]:
    """One sentence per part; p-values are adjusted for the columns that it is looked at in."""
    ablation = accuracies[(accuracies["kind"] == "ablation") & (accuracies["samples"] == 0)]
    for question, (with_it, without_it) in PARTS.items():
        tables = {where: _table(part) for where, part in _columns(ablation)}
        compared = {
            where: paired(table, without_it)[with_it]
            for where, table in tables.items()
            if {with_it, without_it} <= {*table}
        }
        yield _answer(question, compared)
    sweep = accuracies[(accuracies["kind"] == "vsweep") & (accuracies["samples"] > 0)]
    by_draws = {where: _table(part.astype({"samples": str}), "samples") for where, part in _columns(sweep)}
    yield _answer(
        DRAWS, {where: paired(table, "1")["10"] for where, table in by_draws.items() if {"1", "10"} <= {*table}}
    )


def _columns(accuracies: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    for (_, setting, policy), part in accuracies.groupby(ENTRY, sort=False):
        yield f"{setting}, {POLICY_NAMES.get(str(policy), policy)}", part


def _table(accuracies: pd.DataFrame, compared: str = "row") -> pd.DataFrame:
    return accuracies.pivot(index=["seed", "client"], columns=compared, values="accuracy")


def _answer(question: str, compared: Mapping[str, Difference]) -> str:
    if not compared:
        return ""
    adjusted = holm([difference.p for difference in compared.values()])
    significant = [p < LEVEL for p in adjusted]
    verdict = (
        f"Significant in {sum(significant)} of {len(significant)} columns (†)"
        if any(significant)
        else f"No significant difference in {_of(len(significant), 'column')}"
    )
    listed = [f"{where} {_gain(d)}{'†' * t}" for (where, d), t in zip(compared.items(), significant, strict=True)]
    return f"**{question}** {verdict}: {'; '.join(listed)}."


def _of(count: int, noun: str) -> str:
    return f"any of {count} {noun}s" if count > 1 else f"the one {noun}"


def _gain(difference: Difference) -> str:
    return _points(difference.points, difference.low, difference.high)


def _points(points: float, low: float, high: float) -> str:
    return f"{points:+.1f} ({low:.1f} to {high:.1f})".replace("-", "−")


# -- prompts against no prompt ---------------------------------------------------------------------------------------


def _prompts(numbers: pd.DataFrame) -> Iterator[str]:
    """Gains over the control of prompt methods, and of those that train something else."""
    gained = with_gain(numbers)
    with_prompts = gained["method"].map(has_prompts)
    for question, part in (
        ("Does any prompt method beat no prompt under the same policy?", gained[with_prompts]),
        ("Do methods that train other parts of the backbone?", gained[~with_prompts]),
    ):
        columns = [(where, column) for where, column in _columns(part)]
        if columns:
            won = sum(bool((_is_significant(column) & (column["gain"] > 0)).any()) for _, column in columns)
            lines = [
                f"- {'Unseen clients, ' * (column['kind'].iloc[0] == 'unseen')}{where}: {_gains(column)}."
                for where, column in columns
            ]
            yield f"**{question}** In {won} of {len(columns)} columns.\n\n" + "\n".join(lines)


def with_gain(numbers: pd.DataFrame) -> pd.DataFrame:
    """The lines of tables.csv that have a gain over the control."""
    shown = numbers["kind"].isin(["heterogeneity", "unseen"]) & (numbers["metric"] == numbers["kind"].map(COMPARED))
    return numbers[shown].dropna(subset=["gain"])


def has_prompts(method: str) -> bool:
    """Whether the method trains prompt tokens; methods that are not at hand count as if."""
    return method not in registry() or any(field.name == "length" for field in fields(registry().get(method).Params))


def _is_significant(column: pd.DataFrame) -> "pd.Series[bool]":
    return column["gain_p_adjusted"] < LEVEL


def _gains(column: pd.DataFrame) -> str:
    """Who gains or loses and how much; what would have been found where nobody does."""
    texts = []
    for verb, sign in (("gain", 1), ("lose", -1)):
        rows = column[_is_significant(column) & (sign * column["gain"] > 0)].sort_values("gain", ascending=sign < 0)
        changes = rows[["gain", "gain_low", "gain_high"]].to_numpy(float)
        amounts = [f"{title} {_points(*change)}" for title, change in zip(rows["title"], changes, strict=True)]
        if amounts:
            texts.append(f"{len(amounts)} of {len(column)} {verb}{'s' * (len(amounts) == 1)}: {', '.join(amounts)}")
    limit = column["smallest_detectable"].max()
    return (
        "; ".join(texts)
        or f"no significant difference for any of {len(column)}; {limit:.1f} points could have been found"
    )


# -- our order against the paper's -----------------------------------------------------------------------------------


def _orders(accuracies: pd.DataFrame, numbers: pd.DataFrame, paper: Paper | None) -> Iterator[str]:
    """Kendall's tau between our order of methods and the printed one, by setting and policy."""
    main = accuracies[(accuracies["kind"] == "heterogeneity") & (accuracies["samples"] == 0)]
    if paper is None or main.empty:
        return
    partitions = numbers.drop_duplicates("setting").set_index("setting")["partition"]
    orders: dict[str, Order] = {}
    for setting, part in main.groupby("setting", sort=False):
        dataset = PRINTED_FOR.get(parse_partition(partitions[setting]).kind, "")
        printed_column, theirs = _printed(paper, dataset, str(setting))
        for policy in ("paper", *part["policy"].unique()):
            order = _compare_orders(_under(part, policy), paper, theirs)
            if order is not None:
                head = "head as in each paper" if policy == "paper" else POLICY_NAMES.get(policy, policy)
                orders[f"{setting}, {head}, compared with {printed_column}"] = order
    if orders:
        adjusted = holm([order.p for order in orders.values()])
        significant = [order.excludes_zero and p < LEVEL for order, p in zip(orders.values(), adjusted, strict=True)]
        verdicts = map(_order, orders.values(), adjusted, significant)
        lines = [f"- {place}: {verdict}." for place, verdict in zip(orders, verdicts, strict=True)]
        yield (
            "**Does our order of methods agree with the paper's?** Kendall's τ over the methods that the paper prints, "
            "with its 95 % interval over our clients and seeds, and the chance p of as much from unrelated orders, "
            f"adjusted for all columns; the paper prints no spread. Significant in {sum(significant)} of "
            f"{len(significant)} columns.\n\n" + "\n".join(lines)
        )


def _order(order: "Order", p: float, significant: bool) -> str:
    verdict = ("agree" if order.tau > 0 else "contradict each other") if significant else "no significant agreement"
    interval = f"{order.low:.2f} to {order.high:.2f}; p = {p:.2f}"
    return f"τ = {order.tau:.2f} ({interval}) over {order.methods} methods: {verdict}".replace("-", "−")


def _printed(paper: Paper, dataset: str, setting: str) -> tuple[str, "pd.Series[float]"]:
    """The paper's Average by method: of the same setting, or the mean of all where it does not print that one."""
    where, values = paper.printed["heterogeneity"], paper.values
    rows = values[
        values["table"].isin(where.tables)
        & (values["dataset"] == dataset)
        & (values["metric"] == where.metrics["average"])
    ]
    same = rows[rows["label"] == setting]
    if same.empty:
        return f"the mean over {dataset}", rows.groupby("method")["value"].mean()
    return f"{dataset}, {setting}", same.groupby("method")["value"].mean()


def _under(part: pd.DataFrame, policy: str) -> pd.DataFrame:
    """The entries of one policy; `paper` means that of each method's paper."""
    if policy != "paper" or "paper" in set(part["policy"]):
        return part[part["policy"] == policy]
    theirs = {method: registry().get(method).paper_policy for method in part["method"].unique() if method in registry()}
    return part[part["policy"] == part["method"].map(theirs)]


class Order(NamedTuple):
    """Our order compared with the printed one."""

    tau: float
    low: float
    high: float
    p: float
    methods: int

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def _compare_orders(part: pd.DataFrame, paper: Paper, theirs: "pd.Series[float]") -> Order | None:
    """None with fewer than four methods in common, of which no order can be significant."""
    table = _table(part)
    table = table.loc[:, table.groupby(level=0).count().gt(0).all()]  # in an order, every row has every seed
    shown = _titles(part).loc[table.columns]
    titles = {str(row): paper.titles_of(str(row), title)[0] for row, title in shown.items()}
    names = [name for name in dict.fromkeys(titles.values()) if name in theirs.index]
    if len(names) < 4:
        return None
    rows = [[place for place, row in enumerate(table) if titles[str(row)] == name] for name in names]
    printed = np.asarray(theirs[names], np.float64)

    def ours(means: Array) -> Array:
        """FedPR is printed once, as the better of its two variants."""
        return np.array([means[places].max() for places in rows])

    seeds = [part.to_numpy(float) for _, part in table.groupby(level=0)]
    means = ours(_mean(seeds))
    value, p = _tau(means, printed), float(stats.kendalltau(means, printed).pvalue)
    drawn = [_tau(ours(_mean(sample)), printed) for sample in _resampled(seeds)]
    low, high = np.nanquantile(drawn, [LEVEL / 2, 1 - LEVEL / 2])
    return Order(value, float(low), float(high), p, len(names))


def _tau(ours: Array, theirs: Array) -> float:
    """Kendall's tau: pairs in the same order minus pairs in the opposite one, as a share of all pairs."""
    first, second = np.triu_indices(len(ours), 1)
    return float(np.mean(np.sign(ours[first] - ours[second]) * np.sign(theirs[first] - theirs[second])))


def _mean(seeds: Sequence[Array]) -> Array:
    """Of each row: over the clients of a seed, then over seeds."""
    return np.asarray(np.nanmean([np.nanmean(clients, axis=0) for clients in seeds], axis=0), np.float64)


def _titles(part: pd.DataFrame) -> "pd.Series[str]":
    return part.drop_duplicates("row").set_index("row")["title"]


def _resampled(seeds: Sequence[Array]) -> Iterator[list[Array]]:
    """Seeds and, within them, clients, drawn with replacement; all methods see the same."""
    rng = np.random.default_rng(0)  # equal files give equal text
    for _ in range(RESAMPLED):
        drawn = [seeds[number] for number in rng.integers(len(seeds), size=len(seeds))]
        yield [clients[rng.integers(len(clients), size=len(clients))] for clients in drawn]
