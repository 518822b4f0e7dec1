"""From recorded runs to tables and figures: `fedprompt report`.

    collect, records             frames of results, client records and rounds, by one read of MLflow
    accuracies                   which clients and rounds count, for tables and figures alike
    comparisons, inference       gains over the control with their intervals; components, power and ranks serve them
    findings, conclusion         what can be concluded, in sentences
    tables, ablation             the tables of results
    published, papers, doubts    printed values beside ours, where they come from, and what is doubtful about them
    notes, compose, document     what a reader must know; all of it in one document that no format has shaped yet
    figures/                     curves, clients, cost, ranks, tuning: drawn in one style, written as PNG and PDF
    writers/                     the document for the terminal, as Markdown, LaTeX and HTML
    reference, against           a published run of a suite, and your own beside it
    write                        all of the above in order
    reuse                        whether the last report still holds

Tables need only the tracking URI, the tuned values and the printed ones. Figures of partitions and of compute also need
the data sets; a figure whose data are not at hand is left out with a note.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedprompt.harness.report.write import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    """At first use, because matplotlib and scipy take seconds."""
    if name != "write_report":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedprompt.harness.report.write import write_report

    return write_report
