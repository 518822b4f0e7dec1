"""What the tables say, in sentences: of each setting and head policy, of V-sweeps, of mean ranks over settings."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import isnan

import pandas as pd

from fedprompt.harness.federation.policy import PAPER, head_owner
from fedprompt.harness.measuring.measures import Measure, get_measure
from fedprompt.harness.report.collect import POLICY_HEADINGS
from fedprompt.harness.report.comparisons import COMPARED, Comparison, Comparisons, Sweeps
from fedprompt.harness.report.inference import Difference, Leader, significant_rows
from fedprompt.harness.report.numbers import Number, grouped
from fedprompt.harness.report.ranks import MeanRanks, mean_ranks
from fedprompt.harness.report.values import ACCURACY
from fedprompt.harness.running.suite import Setting, Suite

HEADS = {
    "local": "Under a local head",
    "global": "Under a global head",
    "global_then_ft": "Under a global head that each client fine-tunes",
    "none": "",
    "none_then_ft": "After each client has fine-tuned its prompt",
    "paper": "With the head as in each method's paper",
}
ACCURACIES = get_measure(ACCURACY)
LISTED = 3  # more gains or losses than this are counted, and only the largest is given
Sentences = Mapping[tuple[int, str], str]  # by number of the setting and policy, as it is listed


def sentences(suite: Suite, comparisons: Comparisons, sweeps: Sweeps, measure: str = ACCURACY) -> Sentences:
    """What can be concluded from each comparison and each V-sweep; measures other than accuracy are named."""
    known = get_measure(measure)
    concluded = {
        (column, policy): _sentence(suite.settings[column], comparison, policy, known)
        for (column, policy), comparison in comparisons.items()
    }
    by_row: dict[tuple[int, str, str], dict[int, Difference]] = {}
    for (column, policy, row, v), difference in sweeps.items():
        by_row.setdefault((column, policy, row), {})[v] = difference
    for (column, policy, row), differences in by_row.items():
        titles = {each.key: each.title for each in suite.settings[column].rows}
        text = _under(policy, sweep_sentence(differences, titles[row], known))
        concluded[column, policy] = f"{concluded.get((column, policy), '')} {text}".strip()
    if measure == ACCURACY:
        return concluded
    return {place: f"{known.title}: {text}" for place, text in concluded.items()}


def _sentence(setting: Setting, comparison: Comparison, policy: str, measure: Measure) -> str:
    titles = {row.key: row.title for row in setting.rows}
    is_ablation = setting.kind == "ablation"
    control = titles.get(setting.reference, "the reference") if is_ablation else setting.control_title
    limit = max((each for each in comparison.detectable.values() if not isnan(each)), default=float("nan"))
    readings = {setting.reading(row, policy) for row in setting.rows if setting.shows(row, policy)}
    has_head = any(head_owner(reading) != "none" for reading in readings)
    shown = "none" if policy == PAPER and not has_head else policy
    return conclusion(comparison.differences, comparison.leader, limit, shown, titles, control, measure)


def ranks_by_policy(numbers: Sequence[Number]) -> dict[str, MeanRanks]:
    """Mean ranks over the heterogeneity settings, by policy; rows are named by their titles."""
    main = [n for n in numbers if n.kind == "heterogeneity" and n.metric == COMPARED["heterogeneity"]]
    whole = [number for number in main if number.seeds == number.seeds_expected]
    return {
        policy: mean_ranks(
            pd.DataFrame([(n.title, n.column, n.mean) for n in part]).pivot(index=0, columns=1, values=2)
        )
        for policy, part in grouped(whole, lambda n: n.policy).items()
    }


def what_the_tables_say(
    suite: Suite, of_measures: Sequence[Sentences], ranks: Mapping[str, MeanRanks]
) -> Iterator[str]:
    """Every sentence with its table and setting, in the suite's order; then what ranks over settings say."""
    for concluded, (column, setting) in product(of_measures, enumerate(suite.settings)):
        for policy in setting.policies:
            if (column, policy) in concluded:
                yield f"{setting.table}, {setting.label}: {concluded[column, policy]}"
    verdicts: dict[str, list[str]] = {}
    for policy, ranked in ranks.items():
        verdicts.setdefault(ranked.verdict, []).append(POLICY_HEADINGS[policy])
    for verdict, headings in verdicts.items():
        yield verdict if len(ranks) == 1 else f"{'; '.join(headings)}: {verdict}"


# -- one sentence -----------------------------------------------------------------------------------------------------


def conclusion(
    gains: Mapping[str, Difference],
    leader: Leader | None = None,
    detectable: float = float("nan"),
    policy: str = "",
    titles: Mapping[str, str] | None = None,
    control: str = "no prompt",
    measure: Measure = ACCURACIES,
) -> str:
    """One sentence from `paired`, `distinguishable` and `smallest_detectable`.

    ``gains`` is empty where the table has no control; ``titles`` names rows by key; ``control`` is how the sentence
    calls the control.
    """
    names = titles or {}
    compared = {row: gain for row, gain in gains.items() if not isnan(gain.p)}
    parts = (
        list(_against(compared, names, control, measure)) if compared else [f"nothing can be compared with {control}"]
    )
    if compared and not isnan(detectable):
        parts[-1] += f" (smallest detectable difference {_amount(detectable, measure)})"
    if leader is not None and (not compared or len(significant_rows(compared, 1)) > 1):
        parts.append(_lead(leader, names, measure))
    seeds = {gain.seeds for gain in compared.values()} | ({leader.difference.seeds} if leader else set())
    if seeds == {1}:
        parts.append("with one seed this speaks about further clients, not about further seeds")
    return _under(policy, f"{'; '.join(parts)}.")


def _under(policy: str, text: str) -> str:
    head = HEADS.get(policy, f"Under head policy {policy}" if policy else "")
    return f"{head}, {text}" if head else f"{text[0].upper()}{text[1:]}"


def _against(
    gains: Mapping[str, Difference], names: Mapping[str, str], control: str, measure: Measure
) -> Iterator[str]:
    """Who gains, who loses, and how many do neither."""
    significant = 0
    for sign, verb, preposition in ((1, "gain", "over"), (-1, "lose", "against")):
        changes, than = significant_rows(gains, sign), f"{preposition} {control}"
        significant += len(changes)
        amounts = [f"{names.get(change.row, change.row)} {_points(change, measure)}" for change in changes]
        count = f"{len(changes)} of {len(gains)} methods {verb}{'s' * (len(changes) == 1)} {than}"
        if len(gains) == len(changes) == 1:
            yield f"{names.get(changes[0].row, changes[0].row)} {verb}s {_points(changes[0], measure)} {than}"
        elif len(changes) > LISTED:
            most = changes[0]
            yield f"{count}; {names.get(most.row, most.row)} {verb}s most: {_points(most, measure)}"
        elif changes:
            yield f"{count}: {', '.join(amounts)}"
    left = len(gains) - significant
    if left == len(gains):
        yield f"no significant difference from {control}" + f" for any of {left} methods" * (left > 1)
    elif left:
        yield f"no significant difference for the other {left if left > 1 else 'one'}"


def _points(change: Difference, measure: Measure, more_digits: int = 0) -> str:
    """Difference and interval: `+8.5 points (4.7 to 12.1)`."""
    digits = measure.decimals[1] + more_digits
    edges = f"({change.low:.{digits}f} to {change.high:.{digits}f})"
    return f"{change.points:+.{digits}f}{measure.gain_unit} {edges}".replace("-", "−")


def _amount(difference: float, measure: Measure) -> str:
    return f"{difference:.{measure.decimals[1]}f}{measure.gain_unit}"


def _lead(leader: Leader, names: Mapping[str, str], measure: Measure) -> str:
    best, second = names.get(leader.best, leader.best), names.get(leader.second, leader.second)
    if not leader.distinguishable:
        return f"{best} and {second}, the two best, do not differ significantly"
    return f"{best} is better than {second}, the second, by {_amount(leader.difference.points, measure)}"


def sweep_sentence(differences: Mapping[int, Difference], title: str, measure: Measure = ACCURACIES) -> str:
    """What the largest V says against V = 1."""
    most = max(differences)
    change = differences[most]
    if change.significant:
        verb = "gains" if change.points > 0 else "loses"
        return f"{title} {verb} {_points(change, measure, 1)} by averaging {most} draws instead of one."
    return f"{title} with {most} draws shows no significant difference from one draw: {_points(change, measure, 1)}."
