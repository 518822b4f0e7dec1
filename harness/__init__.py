"""Everything that runs a method, and the Python interface to it (docs/api.md).

The names below are imported at first use, because most of them need torch, pandas, MLflow or matplotlib.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedprompt.backbones.weights import backbone_spec
    from fedprompt.core.errors import UserError
    from fedprompt.harness.conformance import check_method
    from fedprompt.harness.measuring.measures import measure_clients, measure_rounds
    from fedprompt.harness.recording.tracker import sync
    from fedprompt.harness.report.write import write_report
    from fedprompt.harness.results import draw_accuracy, read_records, read_scores, read_summaries
    from fedprompt.harness.running.cell import make_cell
    from fedprompt.harness.running.environment import RunEnvironment
    from fedprompt.harness.running.run import run_cell
    from fedprompt.harness.running.session import run_cells
    from fedprompt.harness.running.suite_file import load_suite

__all__ = [
    "RunEnvironment",
    "UserError",
    "backbone_spec",
    "check_method",
    "draw_accuracy",
    "load_suite",
    "make_cell",
    "measure_clients",
    "measure_rounds",
    "read_records",
    "read_scores",
    "read_summaries",
    "run_cell",
    "run_cells",
    "sync",
    "write_report",
]

_MODULES = {
    "RunEnvironment": "harness.running.environment",
    "UserError": "core.errors",
    "backbone_spec": "backbones.weights",
    "check_method": "harness.conformance",
    "draw_accuracy": "harness.results",
    "load_suite": "harness.running.suite_file",
    "make_cell": "harness.running.cell",
    "measure_clients": "harness.measuring.measures",
    "measure_rounds": "harness.measuring.measures",
    "read_records": "harness.results",
    "read_scores": "harness.results",
    "read_summaries": "harness.results",
    "run_cell": "harness.running.run",
    "run_cells": "harness.running.session",
    "sync": "harness.recording.tracker",
    "write_report": "harness.report.write",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"fedprompt.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
