"""Everything that runs a method, and the Python interface to it (docs/api.md).

The names below are imported at first use, because most of them need torch, pandas, MLflow or matplotlib.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedprompt.harness.cells.cell import make_cell
    from fedprompt.harness.cells.run import run_cell
    from fedprompt.harness.cells.session import run_cells
    from fedprompt.harness.cells.site import Site
    from fedprompt.harness.cells.suite_file import load_suite
    from fedprompt.harness.conformance import check_method
    from fedprompt.harness.core.errors import UserError
    from fedprompt.harness.model.weights import backbone_spec
    from fedprompt.harness.report import write_report
    from fedprompt.harness.results import draw_accuracy, read_records, read_summaries
    from fedprompt.harness.tracking.tracker import sync

__all__ = [
    "Site",
    "UserError",
    "backbone_spec",
    "check_method",
    "draw_accuracy",
    "load_suite",
    "make_cell",
    "read_records",
    "read_summaries",
    "run_cell",
    "run_cells",
    "sync",
    "write_report",
]

_MODULES = {
    "Site": "cells.site",
    "UserError": "core.errors",
    "backbone_spec": "model.weights",
    "check_method": "conformance",
    "draw_accuracy": "results",
    "load_suite": "cells.suite_file",
    "make_cell": "cells.cell",
    "read_records": "results",
    "read_summaries": "results",
    "run_cell": "cells.run",
    "run_cells": "cells.session",
    "sync": "tracking.tracker",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
