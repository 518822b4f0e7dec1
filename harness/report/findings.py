"""What the tables say: one sentence per setting and head policy, and mean ranks over settings."""

from collections.abc import Iterator, Mapping
from math import isnan

import pandas as pd

from fedprompt.harness.federation.policy import PAPER, head_owner
from fedprompt.harness.report.collect import POLICY_HEADINGS
from fedprompt.harness.report.comparisons import COMPARED, Comparison, Comparisons
from fedprompt.harness.report.conclusion import HEADS, conclusion
from fedprompt.harness.report.inference import Difference
from fedprompt.harness.report.power import Detectable
from fedprompt.harness.report.ranks import MeanRanks, mean_ranks
from fedprompt.harness.report.sweeps import Sweeps, sweep_sentence
from fedprompt.harness.running.suite import Setting, Suite

Sentences = Mapping[tuple[int, str], str]  # by number of the setting and policy, as it is listed


def sentences(suite: Suite, comparisons: Comparisons, sweeps: Sweeps) -> Sentences:
    """What can be concluded from each comparison and each V-sweep."""
    concluded = {
        (column, policy): _sentence(suite.settings[column], comparison, policy)
        for (column, policy), comparison in comparisons.items()
    }
    by_row: dict[tuple[int, str, str], dict[int, Difference]] = {}
    for (column, policy, row, v), difference in sweeps.items():
        by_row.setdefault((column, policy, row), {})[v] = difference
    for (column, policy, row), differences in by_row.items():
        titles = {each.key: each.title for each in suite.settings[column].rows}
        text = f"{HEADS.get(policy, policy)}, {sweep_sentence(differences, titles[row])}"
        concluded[column, policy] = f"{concluded.get((column, policy), '')} {text}".strip()
    return concluded


def _sentence(setting: Setting, comparison: Comparison, policy: str) -> str:
    titles = {row.key: row.title for row in setting.rows}
    is_ablation = setting.kind == "ablation"
    control = titles.get(setting.reference, "the reference") if is_ablation else setting.control_title
    gains, limit = comparison.differences, _largest(comparison)
    readings = {setting.reading(row, policy) for row in setting.rows if setting.shows(row, policy)}
    has_head = any(head_owner(reading) != "none" for reading in readings)
    shown = "none" if policy == PAPER and not has_head else policy
    return conclusion(gains, comparison.leader, limit, shown, titles, control)


def _largest(comparison: Comparison) -> Detectable | None:
    """The limit that holds for every row."""
    known = [limit for limit in comparison.detectable.values() if not isnan(limit.points)]
    return max(known, key=lambda limit: limit.points, default=None)


def ranks_by_policy(summary: pd.DataFrame) -> dict[str, MeanRanks]:
    """Mean ranks over the heterogeneity settings, by policy; rows are named by their titles."""
    main = summary[(summary["kind"] == "heterogeneity") & (summary["metric"] == COMPARED["heterogeneity"])]
    whole = main[main["seeds"] == main["seeds_expected"]]
    return {
        str(policy): mean_ranks(part.pivot(index="title", columns="column", values="mean"))
        for policy, part in whole.groupby("policy", sort=False)
    }


def what_the_tables_say(suite: Suite, concluded: Sentences, ranks: Mapping[str, MeanRanks]) -> Iterator[str]:
    """Every sentence with its table and setting, in the suite's order; then what ranks over settings say."""
    for column, setting in enumerate(suite.settings):
        for policy in setting.policies:
            if (column, policy) in concluded:
                yield f"{setting.table}, {setting.label}: {concluded[column, policy]}"
    verdicts: dict[str, list[str]] = {}
    for policy, ranked in ranks.items():
        verdicts.setdefault(ranked.verdict, []).append(POLICY_HEADINGS[policy])
    for verdict, headings in verdicts.items():
        yield verdict if len(ranks) == 1 else f"{'; '.join(headings)}: {verdict}"
