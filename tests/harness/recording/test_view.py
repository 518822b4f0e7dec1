"""How MLflow's pages open on the results."""

import json
from pathlib import Path

import pytest
from support.report_suites import every_kind, report, run_all
from support.run_folders import a_cell, done_folder, new_store

from fedprompt.harness.recording.store import connect
from fedprompt.harness.recording.tracker import Tracker
from fedprompt.harness.recording.view import RESULTS, TUNING, view_link, view_tags


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return new_store(tmp_path)


def test_an_experiment_carries_its_view(tmp_path: Path, uri: str) -> None:
    Tracker(uri, tmp_path).finish(done_folder(tmp_path, a_cell()))
    experiment = connect(uri).get_experiment_by_name("fedprompt/glyph-domains")
    assert view_tags().items() <= experiment.tags.items()
    state = json.loads(experiment.tags["mlflow.sharedViewState.fedprompt"])
    assert state["selectedColumns"][:2] == ["metrics.`average`", "metrics.`worst_local`"]


def test_the_link_names_the_view() -> None:
    assert view_link("http://127.0.0.1:5000", "3", RESULTS) == (
        "http://127.0.0.1:5000/#/experiments/3/runs?workflowType=machine_learning&viewStateShareKey=fedprompt"
    )


def test_runs_name_their_data_set(tmp_path: Path, uri: str) -> None:
    Tracker(uri, tmp_path).finish(done_folder(tmp_path, a_cell()))
    client = connect(uri)
    [run] = client.search_runs([client.get_experiment_by_name("fedprompt/glyph-domains").experiment_id])
    [used] = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("glyph-domains", "glyphs")
    assert json.loads(used.dataset.source)["partition"] == "domains:m=1"


@pytest.mark.slow
def test_the_readmes_query_gives_the_tables_numbers(tmp_path: Path, uri: str) -> None:
    """Also where an ablation has runs of the same method."""
    suite = every_kind()
    run_all(suite, uri, tmp_path)
    for folder in (tmp_path / "runs").iterdir():
        Tracker(uri, tmp_path, suite.name, variants=suite.variants()).finish(folder)
    numbers = report(suite, uri, tmp_path)[2]
    table = numbers[(numbers["kind"] == "heterogeneity") & (numbers["metric"] == "average")].set_index("method")["mean"]
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    condition = "tags.partition LIKE 'domains:m=1%' and tags.phase = 'final' and tags.variant = 'main'"
    assert condition in " ".join(readme.split())
    client = connect(uri)
    experiment = client.get_experiment_by_name("fedprompt/glyph-domains").experiment_id
    found: dict[str, list[float]] = {}
    for run in client.search_runs([experiment], condition):
        found.setdefault(run.data.tags["method"], []).append(100 * run.data.metrics["average"])
    assert {method: sum(values) / len(values) for method, values in found.items()} == pytest.approx(table.to_dict())


def test_the_view_of_trials_has_their_rates() -> None:
    [state] = [json.loads(value) for key, value in view_tags().items() if key.endswith(f".{TUNING}")]
    assert "params.`method.lr`" in state["selectedColumns"]
