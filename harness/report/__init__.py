"""From recorded runs to tables and figures: `fedprompt report`.

    collect   numbers, from MLflow alone           tables, ablation, published, notes   a document of them
    records   accuracies of every client           terminal, markdown, latex, html      the document, written
    figures   drawn from both

Whoever has the tracking URI gets the same report, to the byte.
"""

from fedprompt.harness.report.write import write_report

__all__ = ["write_report"]
