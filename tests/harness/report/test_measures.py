"""Tables of measures other than accuracy: planted values by hand, then a toy suite from training to publication."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.report_suites import a_setting, a_suite, records_frame, report, results_frame, row_of, rows, run_all

from fedprompt.core.errors import UserError
from fedprompt.harness import measure_rounds, read_records, read_scores, sync
from fedprompt.harness.measuring import measures
from fedprompt.harness.measuring.measures import Scores, measure
from fedprompt.harness.report import reference
from fedprompt.harness.report.compose import Summary, compose, summarise_suite
from fedprompt.harness.report.numbers import Number
from fedprompt.harness.report.reference import publish, recorded_in, restore
from fedprompt.harness.report.scores import ROUND, check_scores, client_values_of
from fedprompt.harness.report.verified import published_cells
from fedprompt.harness.running.cell import Cell
from fedprompt.harness.running.environment import RunEnvironment
from fedprompt.harness.running.folder import run_folder
from fedprompt.harness.running.run import run_cell
from fedprompt.harness.running.suite import Setting, Suite

RULES = {"rounds": 2, "epochs": 1, "batch_size": 8, "last": 2, "eval_every": 1}
PARTITION = "dirichlet:alpha=1,clients=4,min_size=2"
CONTROL = [1.0, 1.2, 1.4, 1.1]
BETTER = [0.5, 0.72, 0.9, 0.61]


@pytest.fixture
def margin(monkeypatch: pytest.MonkeyPatch) -> str:
    """A measure as a user adds one: one function."""
    monkeypatch.setattr(measures, "_REGISTRY", dict(measures._REGISTRY))

    @measure("margin", "Margin", unit="nats", higher_is_better=False)
    def margin(scores: Scores) -> float:
        """The mean probability of the predicted class."""
        return float(scores.probability.mean())

    return "margin"


def summary_of(
    out: Path, name: str, control: Sequence[float] = CONTROL, better: Sequence[float] = BETTER, **change: object
) -> tuple[Suite, pd.DataFrame, Summary]:
    """Of two rows with these values of the measure, equal in both rounds and seeds but for a little."""
    setting = a_setting(methods=("head-tune", "fedvpt-d"), policies=("local",), **change)
    suite = a_suite(settings=(setting,), seeds=(0, 1), measures=("accuracy", name))
    values = {
        (0, row, seed): [[value + 0.01 * seed for value in clients]] * 2
        for row, clients in (("head-tune", control), ("fedvpt-d", better))
        for seed in (0, 1)
    }
    records = records_frame(values, "local", "local").rename(columns={"accuracy": name}).assign(accuracy=0.5)
    results = results_frame(suite).assign(average=0.5)
    return suite, results, summarise_suite(suite, results, records, out)


def number_of(summary: Summary, row: str = "fedvpt-d") -> Number:
    return next(number for number in summary.tables[1].numbers if number.row == row)


def test_a_gain_is_an_improvement_where_lower_is_better(tmp_path: Path) -> None:
    better = number_of(summary_of(tmp_path, "nll")[2])
    assert (better.metric_name, better.mean) == ("nll", pytest.approx(np.mean(BETTER) + 0.005))
    assert better.gain is not None
    assert better.gain.points == pytest.approx(np.mean(CONTROL) - np.mean(BETTER))
    assert better.gain.low > 0.4
    assert better.leads
    assert better.deciles[1] == pytest.approx(np.median([*BETTER, *(np.array(BETTER) + 0.01)]))


def test_percentages_are_printed_in_hundredths(tmp_path: Path) -> None:
    better = number_of(summary_of(tmp_path, "top-5", [0.5, 0.6, 0.7], [0.6, 0.71, 0.8])[2])
    assert better.mean == pytest.approx(100 * (2.11 / 3 + 0.005))
    assert better.gain is not None
    assert better.gain.points == pytest.approx(31 / 3)


def test_sentences_name_the_measure_and_its_unit(tmp_path: Path) -> None:
    suite, results, summary = summary_of(tmp_path, "nll")
    said = compose(suite, results, summary, []).sections[0].text
    assert any("m=1: Negative log-likelihood: Under a local head, FedVPT-D gains +0.49" in line for line in said)
    assert any("nats (" in line for line in said)


def test_a_method_that_excludes_true_classes_has_no_gain(tmp_path: Path) -> None:
    suite, results, summary = summary_of(tmp_path, "nll", better=[0.5, float("inf"), 0.9, 0.6])
    grid = next(s for s in compose(suite, results, summary, []).sections if s.title.startswith("Negative")).grids[0]
    assert [column.entries[1].text for column in grid.columns] == ["inf", "–"]
    assert any(note.text.startswith("inf: a method that excludes") for note in grid.notes)


def test_the_worst_client_has_no_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "_REGISTRY", dict(measures._REGISTRY))
    measure("worst-nll", "Worst", unit="nats", higher_is_better=False, across="worst", says="Worst.")(measures.accuracy)
    number = number_of(summary_of(tmp_path, "worst-nll")[2])
    assert number.mean == pytest.approx(max(BETTER) + 0.005)
    assert (number.gain, number.deciles) == (None, ())


def test_ablations_and_sweeps_say_which_way_is_better(tmp_path: Path) -> None:
    number = number_of(summary_of(tmp_path, "nll", kind="ablation", reference="head-tune")[2])
    assert number.paired is not None
    assert list(number.paired.by_seed.values()) == pytest.approx([np.mean(CONTROL) - np.mean(BETTER)] * 2)


def test_runs_without_scores_are_missing_from_the_tables(tmp_path: Path) -> None:
    number = number_of(summary_of(tmp_path, "nll", better=[float("nan")] * 4)[2])
    assert (number.status, number.seeds) == ("missing", 0)


def test_without_any_scores_there_are_only_accuracies(tmp_path: Path, uri: str, no_figures: None) -> None:
    suite = a_suite(measures=("accuracy", "nll", "ece"))
    run_all(suite, uri, tmp_path)
    _, text, table = report(suite, uri, tmp_path)
    assert "No tables of nll, ece: no finished run has scores" in text
    assert set(table["metric"]) == {"average", "worst_local"}


# -- from training to publication -------------------------------------------------------------------------------------


def toy_suite(toy_cell: Cell, *names: str, **protocol: object) -> Suite:
    setting = Setting(
        "Toy",
        "alpha=1",
        toy_cell.dataset,
        PARTITION,
        rows("head-tune", "fedvpt-d"),
        protocol={**RULES, **protocol},
        policies=("local",),
    )
    return Suite("toy", "A toy suite", toy_cell.backbone, (0, 1), (setting,), measures=("accuracy", *names))


def train(suite: Suite, out: Path, uri: str) -> None:
    for cell in suite.cells():
        run_cell(cell, RunEnvironment(out))
    sync(out, uri)


@pytest.fixture
def publish_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where to publish the toy suite, which has no file."""
    (tmp_path / "suite.toml").write_text("title = 'toy'")
    monkeypatch.setattr(reference, "suite_path", lambda _: tmp_path / "suite.toml")
    return tmp_path / "reference"


def test_one_function_gives_a_table_with_gain_and_interval(
    toy_cell: Cell, tmp_path: Path, uri: str, no_figures: None, margin: str
) -> None:
    suite = toy_suite(toy_cell, margin, "ece")
    train(suite, tmp_path, uri)
    terminal, text, table = report(suite, uri, tmp_path)
    rounds = measure_rounds(read_scores(tmp_path), margin)
    means = rounds.groupby(["method", "seed"], observed=True)["value"].mean().groupby("method", observed=True).mean()
    found = table[table["metric"] == margin].set_index("row")
    assert found["mean"].to_dict() == pytest.approx(means.to_dict())
    part = text.partition("## Margin: Toy")[2].partition("\n## ")[0]
    gain = row_of(part, "FedVPT-D")[2]
    assert gain.startswith(f"{found.loc['fedvpt-d', 'gain']:+.3f} [".replace("-", "−"))
    assert "Margin: The mean probability of the predicted class. Lower is better." in part
    assert "Margin: Toy" in terminal
    pooled = measure_rounds(read_scores(tmp_path), "ece").groupby("method", observed=True)["value"].mean()
    found = table[table["metric"] == "ece"].set_index("row")
    assert found["mean"].to_dict() == pytest.approx((100 * pooled).to_dict())
    assert found["gain"].notna().tolist() == [False, True]


def test_accuracies_stay_as_they_are(toy_cell: Cell, tmp_path: Path, uri: str, no_figures: None) -> None:
    suite = toy_suite(toy_cell)
    train(suite, tmp_path, uri)
    alone = report(suite, uri, tmp_path)[2]
    both = report(dataclasses.replace(suite, measures=("accuracy", "nll")), uri, tmp_path)[2]
    pd.testing.assert_frame_equal(both[both["metric"].isin(["average", "worst_local"])].reset_index(drop=True), alone)


def test_measured_accuracy_gives_the_numbers_of_the_records(
    toy_cell: Cell, tmp_path: Path, uri: str, no_figures: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measures, "_REGISTRY", dict(measures._REGISTRY))
    measure("again", "Again", unit="%", higher_is_better=True)(measures.accuracy)
    measure("pooled", "Pooled", unit="%", higher_is_better=True, across="pooled")(measures.accuracy)
    suite = toy_suite(toy_cell, "again", "pooled", never_sampled="exclude", participation=0.5)
    train(suite, tmp_path, uri)
    table = report(suite, uri, tmp_path)[2].set_index(["metric", "row"])
    numbers = ["mean", "std", "gain", "gain_low", "gain_high", "gain_p_adjusted", "p50"]
    pd.testing.assert_frame_equal(table.loc["again"][numbers], table.loc["average"][numbers])
    reported = measure_rounds(read_scores(tmp_path).query("participated"), "accuracy", "pooled")
    assert table.loc["pooled"]["mean"].mean() == pytest.approx(100 * reported["value"].mean())


def test_scores_are_published_and_restored(
    toy_cell: Cell, tmp_path: Path, uri: str, no_figures: None, publish_to: Path
) -> None:
    suite = toy_suite(toy_cell, "nll")
    train(suite, tmp_path, uri)
    _, _, table = report(suite, uri, tmp_path)
    publish(suite, tmp_path, publish_to)
    pd.testing.assert_frame_equal(pd.read_csv(publish_to / "tables.csv"), table)
    restore(publish_to, suite.cells(), tmp_path / "elsewhere")
    for cell in suite.cells():
        for name in ("scores.gz", "done"):
            restored, original = run_folder(tmp_path / "elsewhere", cell) / name, run_folder(tmp_path, cell) / name
            assert restored.read_bytes() == original.read_bytes()


def test_damaged_or_missing_scores_are_refused(
    toy_cell: Cell, tmp_path: Path, uri: str, no_figures: None, publish_to: Path
) -> None:
    suite = toy_suite(toy_cell, "nll")
    train(suite, tmp_path, uri)
    report(suite, uri, tmp_path)
    publish(suite, tmp_path, publish_to)
    file = publish_to / "scores" / f"{next(iter(published_cells(publish_to)))}.gz"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match="is damaged; take the whole published folder"):
        recorded_in(publish_to, suite)
    file.unlink()
    with pytest.raises(UserError, match="is missing; take the whole published folder"):
        restore(publish_to, suite.cells(), tmp_path / "elsewhere")


def test_scores_of_another_run_are_refused(toy_cell: Cell, tmp_path: Path) -> None:
    run_cell(toy_cell, RunEnvironment(tmp_path))
    scores, records = read_scores(tmp_path), read_records(tmp_path)
    check_scores(scores, records, "here")
    with pytest.raises(UserError, match="scores in here are not those of its records"):
        check_scores(scores.assign(predicted=(scores["predicted"] + 1) % 4), records, "here")
    with pytest.raises(UserError, match="not those of its records"):
        check_scores(scores[scores["client"] != 0], records, "here")


def test_clients_values_of_a_pooled_measure_have_its_mean(toy_cell: Cell, tmp_path: Path) -> None:
    run_cell(toy_cell, RunEnvironment(tmp_path))
    scores = read_scores(tmp_path)
    clients = client_values_of(scores, measures.get_measure("ece"))
    assert clients["ece"].nunique() > 2
    means = clients.groupby(ROUND, sort=False)["ece"].mean()
    assert means.tolist() == pytest.approx(measure_rounds(scores, "ece")["value"].tolist())
