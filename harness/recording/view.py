"""How MLflow's pages show an experiment: which runs, which columns, in which order, and the link that opens them so.

MLflow 3 opens an experiment on its pages for GenAI unless the address says otherwise, and keeps chosen columns in the
browser. What can be given to others is a shared view: a tag of the experiment that the address names.
"""

import json
from urllib.parse import urlencode

RESULTS, TUNING = "fedprompt", "fedprompt-tuning"  # names of the views
_TAG = "mlflow.sharedViewState."


def view_tags() -> dict[str, str]:
    """Tags of an experiment."""
    results = ["average", "worst_local", "average_ft", "unseen_average"]
    tags = ["method", "head", "partition", "seed", "variant"]
    tuning = ["metrics.`best_value`", "metrics.`default_value`", "metrics.`average`", "tags.`head`"]
    tuned = ["lr", "head_lr", "encoder_lr"]  # what nearly every study varies; names of trials are too long to show it
    views = {
        RESULTS: {
            "searchFilter": "tags.phase = 'final' and tags.variant = 'main'",
            "orderByKey": "metrics.`average`",
            "selectedColumns": [*(f"metrics.`{name}`" for name in results), *(f"tags.`{name}`" for name in tags)],
        },
        TUNING: {  # sorted by time, so that trials are folded into their studies
            "searchFilter": "tags.phase != 'final'",
            "orderByKey": "attributes.start_time",
            "selectedColumns": [*tuning, *(f"params.`method.{name}`" for name in tuned)],
        },
    }
    return {_TAG + name: json.dumps({**state, "orderByAsc": False}) for name, state in views.items()}


def view_link(address: str, experiment_id: str, view: str = RESULTS) -> str:
    """Where a browser finds the experiment's runs."""
    query = urlencode({"workflowType": "machine_learning", "viewStateShareKey": view})
    return f"{address}/#/experiments/{experiment_id}/runs?{query}"
