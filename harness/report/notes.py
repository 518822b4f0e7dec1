"""What a reader must know to judge the numbers: warnings, how to read them, tuned values, where they come from."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import pandas as pd

from fedprompt.datasets import parse_partition, short_name
from fedprompt.harness.federation.policy import POLICY_NAMES, head_owner
from fedprompt.harness.federation.protocol import Protocol
from fedprompt.harness.report.collect import EXCLUDE, PLACE, short_commit
from fedprompt.harness.report.comparisons import NO_PROMPT
from fedprompt.harness.report.components import COLLAPSED
from fedprompt.harness.report.document import MISSING, UNTUNED, Column, Entry, Grid, Note, Section, WrittenFigure
from fedprompt.harness.report.values import protocol_of
from fedprompt.harness.running.suite import Suite

USUAL = asdict(Protocol())
RECIPE = ("optimiser", "schedule", "warmup", "clip", "decay_biases", "head_input")  # of the protocol; papers give none
USUAL_ROUNDS = 10  # the papers' last rounds
HASH = 12  # digits shown
LISTED = 20  # failures that are listed one by one


def alerts(suite: Suite, results: pd.DataFrame) -> list[str]:
    """What could mislead, the worst first."""
    finished = results[results["status"] == "finished"]
    stopped = results[results["status"].isin(("diverged", "failed"))]
    lines = []
    if suite.backbone.weights == "random":
        lines.append("RANDOM WEIGHTS: the backbone was never trained; these numbers say nothing about the methods.")
    if any(setting.protocol.get("val_fraction") for setting in suite.settings):
        lines.append("VALIDATION DATA: accuracies on held-out training data, not on test data.")
    if any(len(hashes) > 1 for hashes in _hashes(results).values()):
        lines.append("PARTITIONS DIFFER between the methods of a setting and seed; see Provenance.")
    if suite.untuned():
        lines.append(untuned_note(suite))
    done, cells = finished["cell"].nunique(), results["cell"].nunique()
    if done < cells:
        todo = f"complete them with: {suite.command('bench')}"
        lines.append(f"{done} of {cells} cells are finished ({MISSING} is missing); {todo}")
    lines += _other_code(suite, results)
    lines += _collapsed(finished)
    reasons = [
        f"{row['status']}: {row['row']}, {row['table']}, {row['setting']}, seed {row['seed']}: {row['reason']}"
        for row in stopped.drop_duplicates("cell").to_dict("records")
    ]
    more = [f"... and {len(reasons) - LISTED} more; see cells.csv."] if len(reasons) > LISTED else []
    return lines + reasons[:LISTED] + more


def _other_code(suite: Suite, results: pd.DataFrame) -> list[str]:
    """Which cells other code has finished, and whether they are shown."""
    older = results[results["other_code"] != ""].drop_duplicates("cell")
    if older.empty:
        return []
    counts = ", ".join(f"{method} {count}" for method, count in older["method"].value_counts(sort=False).items())
    if (older["status"] == "finished").any():
        return [f"OTHER CODE: {len(older)} cells were computed by other code than the present ({counts})."]
    return [
        f"{len(older)} cells are finished, but by other code than the present ({counts}), and not shown: compute them "
        f"with {suite.command('bench')}, or show them with {suite.command('report')} --accept-code"
    ]


def _collapsed(finished: pd.DataFrame) -> list[str]:
    """Which runs collapsed: their row's mean says little."""
    runs = with_collapse(finished)
    low = runs[runs["collapsed"]].drop_duplicates("cell")
    if low.empty:
        return []
    named = [
        f"{run['title']}, {run['setting']}{' unseen' * (run['kind'] == 'unseen')}, {POLICY_NAMES[run['reading']]}, "
        f"seed {run['seed']}: {100 * run['accuracy']:.1f} % instead of {100 * run['accuracy_control']:.1f} %"
        for run in low.to_dict("records")
    ]
    more = f"; and {len(named) - LISTED} more (cells.csv)" if len(named) > LISTED else ""
    rule = "ended below half of no prompt's accuracy with the same head, data and seed, so their rows' means say little"
    return [f"COLLAPSED: {len(low)} of {runs['cell'].nunique()} runs {rule}: {'; '.join(named[:LISTED])}{more}."]


def with_collapse(finished: pd.DataFrame) -> pd.DataFrame:
    """Runs with the accuracy of no prompt under the same head, data and seed, and whether they end far below it."""
    unseen = finished["kind"] == "unseen"
    runs = finished.assign(accuracy=finished["average"].where(~unseen, finished["unseen_average"]))
    same = ["dataset", "partition", "reading", "seed"]
    control = runs[runs["method"] == NO_PROMPT].drop_duplicates(same)[[*same, "accuracy"]]
    runs = runs.merge(control, on=same, suffixes=("", "_control"))
    return runs.assign(collapsed=runs["accuracy"] < COLLAPSED * runs["accuracy_control"])


def untuned_note(suite: Suite) -> str:
    """Which rows have rates that nobody tuned while others have tuned ones, and what to do about it."""
    entries = suite.untuned()
    titles = ", ".join(dict.fromkeys(entry.row.title for entry in entries))
    command = suite.command("tune", {entry.setting.source_method(entry.row) for entry in entries})
    return f"UNTUNED ({UNTUNED}): {titles}, while other rows have tuned rates; tune them with: {command}"


def facts(suite: Suite, results: pd.DataFrame) -> list[tuple[str, str]]:
    """What was run, in a few words each."""
    finished, spec = results[results["status"] == "finished"], suite.backbone
    commits = sorted({short_commit(str(commit)) for commit in finished["commit"] if commit})
    return [
        ("Backbone", f"{spec.name}, {spec.image_size} px, weights {spec.weights}"),
        ("Seeds", ", ".join(map(str, suite.seeds))),
        ("Cells", f"{finished['cell'].nunique()} of {results['cell'].nunique()} finished"),
        ("Learning rates", _tuned_share(suite, results)),
        ("Code", f"fedprompt-bench {', commit '.join([version('fedprompt-bench'), *commits])}"),
    ]


def reading(suite: Suite, results: pd.DataFrame) -> list[str]:
    """What the numbers of the tables are."""
    finished = results[results["status"] == "finished"]
    counted = sorted({int(rounds) for rounds in finished["rounds_counted"].dropna()})
    numbers = " or ".join(map(str, counted))
    over = "last round" if counted == [1] else f"last {numbers} rounds" if counted else "last rounds"
    fewer = f" (fewer than the papers' {USUAL_ROUNDS})" if any(n < USUAL_ROUNDS for n in counted) else ""
    seeds = ", ".join(map(str, suite.seeds))
    spread = f"mean ± sample standard deviation over seeds {seeds}" if len(suite.seeds) > 1 else f"seed {seeds} only"
    kinds = {setting.kind for setting in suite.settings}
    lines = [
        "Accuracy in percent. Average: mean over clients; Worst Local: the worst client of each round; both then mean "
        f"over the {over}{fewer}; {spread}. Bold: the best Average of a column, if significantly better "
        "than the second.",
        f"Gain: difference to {_controls(suite)}, in points, paired by seed and client, with its 95 % interval over "
        "further clients and seeds. docs/statistics.md says how it is made.",
    ]
    if "unseen" in kinds:
        lines.append("Unseen Average: mean over clients that never trained, after they adapted to the last state.")
    if "novel" in kinds:
        lines.append(
            "Base and Novel: each client's model on all test images of the classes that are trained on, and of those "
            "that nobody trains on, each among classes of its own kind; mean over clients. Harmonic Mean: of Average, "
            "Base and Novel. n/a: a head has no place for a class it was not trained on. Gain: on novel classes; its "
            "interval is over further clients and seeds, not over further images."
        )
    if "target" in kinds:
        lines.append(
            "Target: each client's model on all images of the domain that nobody trains on; mean over clients. Gain: "
            "on these images; its interval is over further clients and seeds, not over further images."
        )
    if "vsweep" in kinds:
        lines.append("V: random draws averaged for a prediction; all V of a row are nested draws of one training.")
    if any((finished[metric] != finished[other]).any() for metric, other in EXCLUDE.items()):
        lines.append("[ ]: the value without clients that never took part (never_sampled = exclude).")
    share = results.assign(done=results["status"] == "finished").groupby(PLACE)["done"].mean()
    if share.between(0, 1, inclusive="neither").any():
        lines.append("(k/n): only k of n seeds are finished; such a mean is never bold.")
    lines += _recipes(suite)
    if "heterogeneity" in kinds:
        lines.append("Sent: what one client uploads in one round, floats of 4 bytes.")
    return lines


def _recipes(suite: Suite) -> Iterator[str]:
    """What clients trained by, where that is not the default."""
    recipes: dict[str, list[str]] = {}
    for setting in suite.settings:
        rules = asdict(protocol_of(setting))
        changed = [f"{name.replace('_', ' ')} {rules[name]}" for name in RECIPE if rules[name] != USUAL[name]]
        recipes.setdefault(", ".join(changed), []).append(f"{setting.table}, {setting.label}")
    for changed_text, places in recipes.items():
        if changed_text:
            where = f" ({'; '.join(places)})" if len(recipes) > 1 else ""
            yield f"Recipe other than the default (constant SGD on raw features): {changed_text}{where}."


def _controls(suite: Suite) -> str:
    """What gains are taken over, in words."""
    named = dict.fromkeys(s.control_title for s in suite.settings if s.control)
    default = any(not setting.control for setting in suite.settings)
    return " or ".join(["no prompt under the same head policy"] * default + list(named))


def tuned_section(
    suite: Suite,
    results: pd.DataFrame,
    reliability: Sequence[str] = (),
    figures: tuple[WrittenFigure, ...] = (),
) -> Section:
    """The values that tuning chose, by method and setting; ``reliability`` says how firm the choices are."""
    keys = _tuned_keys(results)
    settings = list(dict.fromkeys(key[1:] for key in keys))
    methods = list({row.method: row.title for row in suite.rows if row.key == row.method}.items())
    columns = tuple(
        Column(
            short_name(dataset),
            f"{partition}, {head} head",
            tuple(Entry(_values(suite.tuned.get((method, dataset, partition, head)))) for method, _ in methods),
        )
        for dataset, partition, head in settings
    )
    grid = Grid(
        "tuned",
        "Chosen values",
        tuple(name for _, name in methods),
        columns,
        notes=(Note("", f"{MISSING}: not tuned there; the suite's or the method's own value was used."),),
    )
    seeds = ", ".join(map(str, suite.tune.seeds))
    finals = f" (finals on {', '.join(map(str, suite.tune.finals))})" if suite.tune.finals else ""
    tie = f" Of points within {100 * suite.tune.tie:g} points of the best, the gentlest won." if suite.tune.tie else ""
    text = f"{_tuned_share(suite, results)}, on seeds {seeds}{finals}, which no table reports.{tie}"
    return Section("Tuned values", (text[0].upper() + text[1:], *reliability), (grid,), figures, folded=True)


def _tuned_share(suite: Suite, results: pd.DataFrame) -> str:
    if not suite.tuned:
        return "untuned: the suite's or the methods' own"
    keys = _tuned_keys(results.drop_duplicates("cell"))
    return f"tuned on held-out data: {sum(key in suite.tuned for key in keys)} of {len(keys)} cells"


def _tuned_keys(results: pd.DataFrame) -> list[tuple[str, str, str, str]]:
    """Method, data set, canonical partition and who owns the head, as tuned values are stored."""
    lines = results[["method", "dataset", "partition", "reading"]].itertuples(index=False, name=None)
    return [
        (method, dataset, str(parse_partition(partition)), head_owner(reading))
        for method, dataset, partition, reading in lines
    ]


def _values(values: Mapping[str, Any] | None) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items()) if values else MISSING


def provenance(suite: Suite, results: pd.DataFrame, figures: tuple[WrittenFigure, ...] = ()) -> Section:
    """Who has what, as one hash per setting and seed; all methods of a table must show the same."""
    hashes = _hashes(results)
    lines = list(dict.fromkeys((key[0], key[1]) for key in hashes))
    columns = [
        Column("Partition's hash", f"seed {seed}", tuple(_hash_entry(hashes.get((*line, seed), [])) for line in lines))
        for seed in suite.seeds
    ]
    grid = Grid(
        "partitions", "Partitions", tuple(f"{short_name(d)} {p}" for d, p in lines), tuple(columns), corner="Setting"
    )
    finished = results[results["status"] == "finished"].drop_duplicates("dataset")
    data = [
        f"Data {short_name(row['dataset'])}: checksum {row['data_checksum'] or 'not recorded'}."
        for row in finished.to_dict("records")
    ]
    text = "Every cell with its hash, commit and numbers is in cells.csv, every number of the tables in tables.csv."
    return Section("Provenance", (*data, text), (grid,), figures, folded=True)


def runs(suite: Suite, results: pd.DataFrame) -> Section:
    """A link to the run folder of every finished cell: one line per row of a table and policy, one column per seed."""
    lines = results.drop_duplicates(["table", "setting", "title", "policy"])
    names = [f"{r['table']}, {r['setting']}: {r['title']}, {r['policy']}" for r in lines.to_dict("records")]
    places = list(lines[["column", "row", "policy"]].itertuples(index=False, name=None))
    cells = results.set_index(["column", "row", "policy", "seed"])[["cell", "status"]].to_dict("index")
    columns = [
        Column("Run", f"seed {seed}", tuple(_run(cells.get((*place, seed))) for place in places))
        for seed in suite.seeds
    ]
    grid = Grid("runs", "Runs", tuple(names), tuple(columns), corner="Entry")
    text = "Each link opens the folder of a run, if the results are where the page was written."
    return Section("Runs", (text,), (grid,), page_only=True, folded=True)


def _run(cell: Mapping[Any, Any] | None) -> Entry:
    if cell is None or cell["status"] != "finished":
        return Entry(MISSING)
    return Entry(cell["cell"], link=f"../../runs/{cell['cell']}/")


def _hashes(results: pd.DataFrame) -> dict[tuple[str, str, int], list[str]]:
    """Partition hashes of the finished runs of each data set, partition and seed; one each, if all is well."""
    keys = zip(results["dataset"], results["partition"], results["seed"], strict=True)
    hashes: dict[tuple[str, str, int], set[str]] = {}
    for key, text in zip(keys, results["partition_hash"], strict=True):
        hashes.setdefault(key, set()).update([text] if text else [])
    return {key: sorted(texts) for key, texts in hashes.items()}


def _hash_entry(hashes: Sequence[str]) -> Entry:
    return Entry(" and ".join(text[:HASH] for text in hashes) or MISSING)
