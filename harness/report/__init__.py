"""From recorded runs to tables and figures: `fedprompt report`.

    collect, records             frames of results, client records and rounds, by one read of MLflow
    scores                       from predictions of images to one column of the records per measure
    values                       values of clients: which clients and rounds count, for any measure
    comparisons, inference       gains over the control with their intervals; components, power and ranks serve them
    papers, published            printed values next to ours, where they come from, and all that is known to differ
    measured                     results with a measure in place of accuracy
    numbers                      every entry of the tables, made once, with its gain and what a paper prints for it
    findings                     what can be concluded, in sentences
    tables                       the tables of results
    notes, compose, document     what a reader must know; all of it in one document that no format has shaped yet
    figures/                     curves, clients, cost, ranks, tuning: drawn in one style, written as PNG and PDF
    writers/                     the document for the terminal, as Markdown, LaTeX and HTML
    reference, against           a published run of a suite, and your own compared with it
    write                        all of the above in order
    reuse                        whether the last report still holds

Tables need only the tracking URI, the tuned values and the printed ones. Figures of partitions and of compute also need
the data sets; a figure whose data are not at hand is left out with a note.

Accuracy comes from the records; every other measure that a suite names is one more column of them (`scores`). From
there on there is one way for all: `values`, `comparisons`, `numbers` and `findings` take the measure's name.
"""
