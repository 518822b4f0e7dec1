"""Questions that a user asks MLflow's own pages."""

from typing import Any
from urllib.parse import quote

import pytest


@pytest.fixture
def runs_page(browser: Any, mlflow_ui: str, results: Any) -> Any:
    """Opens the list of runs of the data set's experiment, filtered."""
    from mlflow import MlflowClient
    from selenium.webdriver.support.wait import WebDriverWait

    client = MlflowClient(f"sqlite:///{results / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("fedprompt/glyph-domains")
    assert experiment is not None

    def show(condition: str, awaited: str) -> str:
        browser.get(f"{mlflow_ui}/#/experiments/{experiment.experiment_id}/runs?searchFilter={quote(condition)}")
        WebDriverWait(browser, 90).until(lambda page: awaited in page.find_element("tag name", "body").text)
        return str(browser.find_element("tag name", "body").text)

    return show


def test_experiments_are_named_after_data_sets(browser: Any, mlflow_ui: str) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get(f"{mlflow_ui}/#/experiments")
    WebDriverWait(browser, 90).until(
        lambda page: "fedprompt/glyph-domains" in page.find_element("tag name", "body").text
    )


def test_which_methods_ran_at_m_2(runs_page: Any) -> None:
    text = runs_page("tags.partition LIKE 'domains:m=2%' and tags.phase = 'final'", "pFedBayesPT m=2")
    assert "FedVPT m=2" in text
    assert "m=6" not in text.split("Run Name")[-1]


def test_how_seed_1_of_fedvpt_went(runs_page: Any) -> None:
    text = runs_page("tags.method = 'fedvpt' and tags.seed = '1'", "FedVPT m=2 s1")
    assert " s0 " not in text.split("Run Name")[-1]


def test_the_printed_link_opens_on_runs_with_their_accuracies(browser: Any, mlflow_ui: str, results: Any) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    from fedprompt.harness.cli.ui import _links

    [line] = _links(mlflow_ui, f"sqlite:///{results / 'mlflow.db'}")
    browser.get(line.split()[-1])
    WebDriverWait(browser, 90).until(lambda page: "FedVPT m=2 s1" in page.find_element("tag name", "body").text)
    text = browser.find_element("tag name", "body").text
    assert "average" in text
    assert "worst_local" in text
