import pandas as pd
import pytest
from support.report_suites import a_setting, a_suite, every_kind, results_frame

from fedprompt.harness.cells.suite import Suite
from fedprompt.harness.report.collect import summarise_seeds
from fedprompt.harness.report.document import Entry, Grid
from fedprompt.harness.report.tables import heterogeneity, result_entry, signed, slug, tables_of, unique, unseen, vsweep


def number(**change: object) -> pd.Series:
    values = {"status": "finished", "mean": 61.234, "std": 0.5, "mean_exclude": 61.234, "std_exclude": 0.5}
    return pd.Series({**values, "seeds": 3, "seeds_expected": 3, **change})


@pytest.mark.parametrize(
    ("change", "entry"),
    [
        ({}, Entry("61.23±0.50", value=61.23)),
        ({"std": float("nan"), "std_exclude": float("nan")}, Entry("61.23", value=61.23)),  # one seed
        ({"mean_exclude": 62.0}, Entry("61.23±0.50", "[62.00±0.50]", 61.23)),
        ({"mean_exclude": float("nan")}, Entry("61.23±0.50", value=61.23)),  # none ever took part
        ({"seeds": 2}, Entry("61.23±0.50 (2/3)")),  # not compared
        ({"status": "failed"}, Entry("failed")),
        ({"status": "missing", "mean": float("nan")}, Entry("–")),
        ({"mean": float("nan")}, Entry("–")),
    ],
)
def test_an_entry(change: dict[str, object], entry: Entry) -> None:
    assert result_entry(number(**change)) == entry


def shown(suite: Suite, **numbers: list[float]) -> Grid:
    results = results_frame(suite, **numbers)
    for metric in ("average", "worst_local"):
        results[f"{metric}_exclude"] = results[metric]
    return heterogeneity("Feature shift", summarise_seeds(results))


def test_best_is_first_and_second_is_second_of_each_column() -> None:
    suite = a_suite(("head-tune", "fedvpt", "fedvpt-d"))
    grid = shown(suite, average=[0.5, 0.7, 0.6], worst_local=[0.3, 0.1, 0.2])
    assert grid.rows == ("No prompt", "FedVPT", "FedVPT-D")
    assert [[entry.rank for entry in column.entries] for column in grid.columns[:2]] == [[0, 1, 2], [1, 0, 2]]


def test_values_that_print_alike_are_equal() -> None:
    grid = shown(a_suite(), average=[0.500001, 0.5], worst_local=[0.3, 0.2])
    assert [entry.rank for entry in grid.columns[0].entries] == [1, 1]


def test_settings_stand_side_by_side_then_what_is_sent() -> None:
    grid = shown(a_suite(m=(1, 2)), average=[0.5] * 4, worst_local=[0.5] * 4)
    heads = [(column.setting, column.metric) for column in grid.columns]
    assert heads[:2] == [("m=1", "Average"), ("m=1", "Worst Local")]
    assert heads[2:] == [("m=2", "Average"), ("m=2", "Worst Local"), ("Sent", "")]
    assert grid.columns[-1].entries[0].text == "200 B"


def test_sent_is_a_range_where_settings_differ() -> None:
    suite = a_suite(("fedvpt",), m=(1, 2))
    assert shown(suite, floats_up=[50.0, 500.0]).columns[-1].entries[0].text == "200 B to 2.0 kB"


def test_a_row_that_a_setting_lacks_is_empty_there() -> None:
    suite = a_suite(settings=(a_setting("m=1"), a_setting("m=2", ("fedvpt", "sgpt"))))
    grid = shown(suite, average=[0.1, 0.2, 0.3, 0.4], worst_local=[0.1, 0.2, 0.3, 0.4])
    assert grid.rows == ("No prompt", "FedVPT", "SGPT")
    assert [entry.text for entry in grid.columns[0].entries] == ["10.00", "20.00", ""]
    assert [entry.text for entry in grid.columns[2].entries] == ["", "30.00", "40.00"]


def test_unseen_clients_have_one_column_a_setting() -> None:
    suite = a_suite(settings=(a_setting(kind="unseen"),))
    grid = unseen("Unseen", summarise_seeds(results_frame(suite, unseen_average=[0.25, 0.5])))
    [column] = grid.columns
    assert (column.metric, [entry.text for entry in column.entries]) == ("Unseen Average", ["25.00", "50.00"])


def test_vsweep_has_a_column_a_v_and_names_settings_where_there_are_several() -> None:
    settings = tuple(a_setting(f"m={m}", ("pfedbayespt",), kind="vsweep") for m in (1, 2))
    suite = a_suite(settings=settings)
    values = {f"average_samples_{v}": [0.5 + 0.01 * v, 0.4] for v in range(1, 11)}
    grid = vsweep("V-sweep", summarise_seeds(results_frame(suite, **values)))
    assert grid.rows == ("pFedBayesPT, m=1", "pFedBayesPT, m=2")
    assert [column.metric for column in grid.columns] == [f"V={v}" for v in range(1, 11)]
    assert [column.entries[0].text for column in grid.columns][::9] == ["51.00", "60.00"]


def test_a_table_is_a_heading_and_a_kind() -> None:
    summary = summarise_seeds(results_frame(every_kind()))
    kinds = [(title, kind) for title, kind, _ in tables_of(summary)]
    assert kinds[0] == ("Feature shift", "heterogeneity")
    assert kinds[1:] == [("Unseen", "unseen"), ("Ablation", "ablation"), ("V-sweep", "vsweep")]


@pytest.mark.parametrize(("value", "text"), [(1.5, "+1.50"), (-0.126, "−0.13"), (0.0, "+0.00")])
def test_differences_have_a_sign(value: float, text: str) -> None:
    assert signed(value) == text


def test_names_of_files() -> None:
    assert slug("Label shift (CIFAR-100, s classes)") == "label-shift"
    assert slug("(?)") == "table"
    assert unique(["a", "b", "a", "a", "a-2"]) == ["a", "b", "a-2", "a-3", "a-2-2"]
